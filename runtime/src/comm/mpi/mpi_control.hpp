// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/job_failure.hpp"
#include "mpi_api.hpp"

#include "usp/comm/communicator.hpp"

#include <optional>
#include <vector>

namespace usp::comm {

/// Throws InternalError for a return code other than success outside a message.
void check_mpi(int code, const char* call);
[[nodiscard]] std::string mpi_error_text(int code);

/// Reports a failure to all processes of a job, on a communicator of its own. A report is small enough to
/// leave eagerly: it arrives even at a busy receiver, which reads it in its next call.
class MpiControl {
 public:
  /// Collective. `ends_process`: a call of MPI that does not return may end this process.
  MpiControl(MPI_Comm parent, bool ends_process);
  ~MpiControl();
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;

  /// Gives notice to all, unless the job is over already. `exit_code` is what the job ends with.
  void broadcast_failure(const CommunicationFault& fault, ExitCode exit_code);
  /// Lets MPI advance; throws the failure of the job once there is one.
  void poll();
  /// Throws the failure of the job. Waits first for reports that crossed: the lowest rank's wins.
  [[noreturn]] void raise();
  [[nodiscard]] bool aborted() const { return failure_.has_value(); }
  [[nodiscard]] const CommunicationFault& fault() const { return failure_->fault; }
  [[nodiscard]] ExitCode exit_code() const { return failure_->exit_code; }
  /// How long a call of MPI may last that waits for other ranks: for ever where this process is not ours to
  /// end.
  [[nodiscard]] double limit_of_call(double limit_s) const;
  /// Waits until all ranks got here, at most `limit_s`; false when some did not.
  [[nodiscard]] bool wait_for_all(double limit_s);

 private:
  void listen();
  void receive();

  MPI_Comm comm_ = MPI_COMM_NULL;
  bool ends_process_;
  int rank_ = 0;
  int size_ = 1;
  FailureFrame incoming_;
  FailureFrame outgoing_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> sending_;
  std::optional<JobFailure> failure_;
  bool failure_is_final_ = false;  ///< the failure report is final
};

}  // namespace usp::comm
