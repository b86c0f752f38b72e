// SPDX-License-Identifier: Apache-2.0
#include "mpi_control.hpp"

#include "../failure/backoff.hpp"
#include "../failure/deadline.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <type_traits>

namespace usp::comm {

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw InternalError(fmt::format("{}: {}", call, mpi_error_text(code)));
}

MpiControl::MpiControl(MPI_Comm parent, bool ends_process) : ends_process_(ends_process) {
  check_mpi(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  listen();
}

MpiControl::~MpiControl() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0 || aborted()) return;
  if (listening_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&listening_);
    MPI_Wait(&listening_, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&comm_);
}

void MpiControl::listen() {
  static_assert(std::is_trivially_copyable_v<FailureFrame> && sizeof(FailureFrame) < 2048);
  check_mpi(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &listening_),
            "MPI_Irecv");
}

void MpiControl::broadcast_failure(const CommunicationFault& fault, ExitCode exit_code) {
  receive();
  if (aborted()) return;
  failure_ = JobFailure{fault, exit_code, rank_};
  outgoing_ = pack(*failure_);
  failure_ = unpack(outgoing_, size_, rank_);  // every rank reports the same text, cut at the same place
  sending_.resize(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_)
      MPI_Isend(&outgoing_, sizeof outgoing_, MPI_BYTE, peer, 0, comm_,
                &sending_[static_cast<std::size_t>(peer)]);
}

/// Takes the notices that are there.
void MpiControl::receive() {
  int arrived = 1;
  while (arrived != 0) {
    MPI_Status status;
    check_mpi(MPI_Test(&listening_, &arrived, &status), "MPI_Test");
    if (arrived == 0) return;
    JobFailure failure = unpack(incoming_, size_, status.MPI_SOURCE);
    if (!failure_is_final_ && (!failure_ || failure.origin < failure_->origin)) failure_ = std::move(failure);
    listen();
  }
}

void MpiControl::poll() {
  receive();
  if (aborted()) raise();
}

void MpiControl::raise() {
  const Deadline deadline(crossing_s);
  Backoff backoff;
  while (!failure_is_final_ && !deadline.over()) {
    receive();
    backoff.rest();
  }
  failure_is_final_ = true;
  throw CommunicationError(failure_->fault);
}

double MpiControl::limit_of_call(double limit_s) const {
  return ends_process_ ? limit_s : std::numeric_limits<double>::max();
}

bool MpiControl::wait_for_all(double limit_s) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  const Deadline deadline(limit_s);
  Backoff backoff;
  int done = 0;
  while (done == 0 && !deadline.over()) {
    receive();
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) backoff.rest();
  }
  return done != 0;
}

}  // namespace usp::comm
