// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../group/collectives.hpp"
#include "../group/ticket_table.hpp"
#include "mpi_control.hpp"
#include "mpi_types.hpp"

#include <memory>
#include <vector>

namespace usp::comm {

/// Processes as ranks, on an MPI communicator of their own. Waiting polls: MPI makes no progress by itself.
class MpiCommunicator final : public CollectiveCommunicator {
 public:
  /// Owns `communicator`. job_ranks[i] is rank i's rank in the whole job.
  MpiCommunicator(MPI_Comm communicator, std::vector<int> job_ranks, std::shared_ptr<MpiControl> control,
                  const CommOptions& options);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(job_ranks_.size()); }
  i64 wait(Ticket ticket) override;
  [[nodiscard]] std::optional<i64> test(Ticket ticket) override;
  void progress() override { control_->poll(); }
  void reserve(i64 messages, i64 regions) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;
  void set_watchdog(double watchdog_s) { options_.watchdog_s = watchdog_s; }
  [[nodiscard]] const CommOptions& options() const override { return options_; }
  void abort(const CommunicationFault& fault) override {
    control_->broadcast_failure(fault, ExitCode::environment);
  }

 protected:
  void start(const Message* messages, i64 count, Ticket* tickets) override;

 private:
  /// A message in flight: its payload cut at multiples of chunk_bytes_, which both ends see alike whatever
  /// their regions are. The pieces share a tag; MPI keeps their order.
  struct Slot {
    Message message;
    i64 bytes = 0;
    i64 moved = 0;
    i64 header = 0;  ///< the true tag, where the tag is folded
    std::vector<MPI_Request> pieces;
    std::size_t complete = 0;  ///< pieces, from the first
  };
  [[nodiscard]] int job_rank(int rank) const { return job_ranks_[static_cast<std::size_t>(rank)]; }
  Ticket open_slot(const Message& message);
  void start_piece(Slot& slot, i64 begin, i64 end);
  [[nodiscard]] bool advance(Slot& slot);
  void check_piece(Slot& slot, int code, MPI_Status& status);
  i64 finish(const Slot& slot, Ticket ticket);
  [[noreturn]] void fail(const CommunicationFault& fault);
  [[noreturn]] void report_late(const Slot& slot);

  MPI_Comm comm_;
  std::vector<int> job_ranks_;
  std::shared_ptr<MpiControl> control_;
  CommOptions options_;
  i64 chunk_bytes_;
  TagMap tags_;
  int rank_ = 0;
  int groups_ = 0;
  TicketTable<Slot> slots_;
  std::vector<StridedBytes> cut_;
};

}  // namespace usp::comm
