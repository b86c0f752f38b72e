// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../group/collectives.hpp"
#include "socket_mesh.hpp"

#include <memory>
#include <vector>

namespace usp::comm {

/// Processes as ranks, on connections that all communicators of the job share.
class SocketCommunicator final : public CollectiveCommunicator {
 public:
  /// job_ranks[i] is rank i's rank in the whole job; `context` distinguishes this communicator's messages
  /// from others'.
  SocketCommunicator(std::shared_ptr<SocketMesh> mesh, std::vector<int> job_ranks, std::uint64_t context);
  ~SocketCommunicator() override;
  SocketCommunicator(const SocketCommunicator&) = delete;
  SocketCommunicator& operator=(const SocketCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "sockets"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(job_ranks_.size()); }
  [[nodiscard]] const CommOptions& options() const override { return mesh_->options(); }
  i64 wait(Ticket ticket) override;
  [[nodiscard]] std::optional<i64> test(Ticket ticket) override;
  void progress() override { mesh_->poll(); }
  void reserve(i64 messages, i64 regions) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;
  void abort(const CommunicationFault& fault) override {
    mesh_->broadcast_failure(fault, ExitCode::environment);
  }

 protected:
  void start(const Message* messages, i64 count, Ticket* tickets) override;

 private:
  i64 finish(const SocketSlot& slot, Ticket ticket);

  std::shared_ptr<SocketMesh> mesh_;
  std::vector<int> job_ranks_;
  std::uint64_t context_;
  int rank_ = 0;
  i64 groups_ = 0;
  i64 in_flight_ = 0;
  i64 reserved_ = 0;
};

/// Of all ranks of a mesh.
[[nodiscard]] std::unique_ptr<SocketCommunicator> make_world(std::shared_ptr<SocketMesh> mesh);

}  // namespace usp::comm
