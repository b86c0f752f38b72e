// SPDX-License-Identifier: Apache-2.0
#include "mpi_communicator.hpp"

#include "../failure/backoff.hpp"
#include "../failure/call_watch.hpp"
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"
#include "../regions/region_cut.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace usp::comm {
namespace {

/// Counts of MPI are ints; a header may come on top.
constexpr i64 max_chunk_bytes = (i64{1} << 31) - 4096;

int max_tag(MPI_Comm communicator) {
  void* value = nullptr;
  int known = 0;
  MPI_Comm_get_attr(communicator, MPI_TAG_UB, &value, &known);
  return known != 0 ? *static_cast<int*>(value) : 32767;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm communicator, std::vector<int> job_ranks,
                                 std::shared_ptr<MpiControl> control, const CommOptions& options)
    : comm_(communicator),
      job_ranks_(std::move(job_ranks)),
      control_(std::move(control)),
      options_(options),
      chunk_bytes_(std::clamp(options.chunk_bytes, i64{1}, max_chunk_bytes)),
      tags_(max_tag(communicator)) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
}

MpiCommunicator::~MpiCommunicator() {
  if (slots_.in_flight() != 0 && !control_->aborted())
    control_->broadcast_failure(unfinished_fault(job_rank(rank_), slots_.in_flight()), ExitCode::internal);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !control_->aborted()) MPI_Comm_free(&comm_);
}

void MpiCommunicator::reserve(i64 messages, i64 regions) {
  cut_.reserve(static_cast<std::size_t>(regions));
  slots_.reserve(messages);
}

Ticket MpiCommunicator::open_slot(const Message& message) {
  const Ticket ticket = slots_.open([this](i64 count) { slots_.reserve(count); });
  Slot& slot = slots_[ticket];
  slot.message = message;
  slot.bytes = message.bytes();
  slot.moved = 0;
  slot.header = message.tag;
  slot.pieces.clear();
  slot.complete = 0;
  return ticket;
}

void MpiCommunicator::start(const Message* messages, i64 count, Ticket* tickets) {
  control_->poll();
  for (i64 i = 0; i < count; ++i) {
    tickets[i] = open_slot(messages[i]);
    Slot& slot = slots_[tickets[i]];
    for (i64 begin = 0; begin < slot.bytes; begin += chunk_bytes_)
      start_piece(slot, begin, std::min(begin + chunk_bytes_, slot.bytes));
  }
}

void MpiCommunicator::start_piece(Slot& slot, i64 begin, i64 end) {
  const Message& message = slot.message;
  cut_payload(message.regions, message.region_count, begin, end, cut_);
  const bool header = begin == 0 && tags_.folded(message.tag);
  const MpiLayout layout(cut_, reinterpret_cast<std::byte*>(&slot.header),
                         header ? static_cast<i64>(sizeof slot.header) : 0);
  MPI_Request& request = slot.pieces.emplace_back(MPI_REQUEST_NULL);
  const int tag = tags_.wire(message.tag);
  const int code =
      message.send
          ? MPI_Isend(layout.address(), layout.count(), layout.type(), message.peer, tag, comm_, &request)
          : MPI_Irecv(layout.address(), layout.count(), layout.type(), message.peer, tag, comm_, &request);
  if (code != MPI_SUCCESS)
    fail({message.operation,
          message.tick,
          job_rank(rank_),
          {job_rank(message.peer)},
          fmt::format("{}: MPI refuses a message: {}", name_operation(message.operation, message.tick),
                      mpi_error_text(code))});
  if (message.send) slot.moved += end - begin;
}

/// True when all pieces are there.
bool MpiCommunicator::advance(Slot& slot) {
  while (slot.complete < slot.pieces.size()) {
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&slot.pieces[slot.complete], &done, &status);
    if (code != MPI_SUCCESS || (done != 0 && !slot.message.send)) check_piece(slot, code, status);
    if (done == 0) return false;
    ++slot.complete;
  }
  return true;
}

/// What arrived is what was expected: in size, and in tag where it is folded.
void MpiCommunicator::check_piece(Slot& slot, int code, MPI_Status& status) {
  const Message& message = slot.message;
  const int peer = job_rank(message.peer);
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  if (error_class == MPI_ERR_TRUNCATE) fail(size_fault(message, job_rank(rank_), peer, slot.bytes, -1));
  if (code != MPI_SUCCESS)
    fail({message.operation,
          message.tick,
          job_rank(rank_),
          {peer},
          fmt::format("the connection of rank {} to rank {} failed in {}: {}", job_rank(rank_), peer,
                      name_operation(message.operation, message.tick), mpi_error_text(code))});
  const i64 begin = static_cast<i64>(slot.complete) * chunk_bytes_;
  const i64 expected = std::min(chunk_bytes_, slot.bytes - begin);
  int arrived = 0;
  MPI_Get_count(&status, MPI_BYTE, &arrived);
  const bool header = slot.complete == 0 && tags_.folded(message.tag);
  if (header && slot.header != message.tag)
    fail({message.operation,
          message.tick,
          job_rank(rank_),
          {peer},
          fmt::format("tags {} and {} are in flight between ranks {} and {} at once, and this MPI cannot "
                      "tell them apart; number messages from 0",
                      message.tag, slot.header, job_rank(rank_), peer)});
  const i64 payload = arrived - (header ? static_cast<i64>(sizeof slot.header) : 0);
  if (payload != expected) fail(size_fault(message, job_rank(rank_), peer, slot.bytes, begin + payload));
  slot.moved += payload;
}

void MpiCommunicator::fail(const CommunicationFault& fault) {
  control_->broadcast_failure(fault, ExitCode::environment);
  control_->raise();
}

i64 MpiCommunicator::finish(const Slot& slot, Ticket ticket) {
  const i64 moved = slot.moved;
  slots_.close(ticket);
  return moved;
}

i64 MpiCommunicator::wait(Ticket ticket) {
  Slot& slot = slots_.of(ticket);
  WaitWatch watch(options_);
  Backoff backoff;
  control_->poll();
  while (!advance(slot)) {
    control_->poll();
    const WaitState state = watch.look();
    if (state == WaitState::interrupted) fail(interrupted_fault(slot.message, job_rank(rank_)));
    if (state == WaitState::late) report_late(slot);
    backoff.rest();
  }
  return finish(slot, ticket);
}

std::optional<i64> MpiCommunicator::test(Ticket ticket) {
  Slot& slot = slots_.of(ticket);
  control_->poll();
  if (!advance(slot)) return std::nullopt;
  return finish(slot, ticket);
}

/// Names every peer that this rank still misses in the same operation.
void MpiCommunicator::report_late(const Slot& slot) {
  std::vector<int> missing{job_rank(slot.message.peer)};
  slots_.for_each_open([&](Slot& other) {
    if (other.message.tick == slot.message.tick &&
        std::string_view(other.message.operation) == slot.message.operation && !advance(other))
      missing.push_back(job_rank(other.message.peer));
  });
  fail(late_fault(slot.message, job_rank(rank_), std::move(missing), options_.watchdog_s, ""));
}

std::unique_ptr<Communicator> MpiCommunicator::group(const std::vector<int>& ranks) {
  check_group(*this, ranks);  // everybody is here: the call below waits only for a rank that stops now
  const int sequence = groups_++;
  const bool member = std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
  if (ranks.size() < 2 || !member) return nullptr;
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group chosen = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &chosen), "MPI_Group_incl");
  const CallWatch watch(control_->limit_of_call(options_.watchdog_s), "MPI_Comm_create_group");
  check_mpi(MPI_Comm_create_group(comm_, chosen, sequence % 1024, &made), "MPI_Comm_create_group");
  MPI_Group_free(&chosen);
  MPI_Group_free(&all);
  std::vector<int> job_ranks;
  for (const int rank : ranks) job_ranks.push_back(job_rank(rank));
  return std::make_unique<MpiCommunicator>(made, std::move(job_ranks), control_, options_);
}

}  // namespace usp::comm
