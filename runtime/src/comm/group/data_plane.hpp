// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <memory>
#include <utility>

namespace usp::comm {

/// A communicator that moves payload its own way, and leaves everything else to another one of the same
/// ranks: rank and size, collectives of host memory, watchdog and abort.
class DataPlaneCommunicator : public Communicator {
 public:
  explicit DataPlaneCommunicator(Communicator& control) : control_(control) {}
  /// Of a group: owns its control communicator.
  explicit DataPlaneCommunicator(std::unique_ptr<Communicator> control) : DataPlaneCommunicator(*control) {
    owned_ = std::move(control);
  }

  [[nodiscard]] int rank() const final { return control_.rank(); }
  [[nodiscard]] int size() const final { return control_.size(); }
  void barrier() final { control_.barrier(); }
  void all_gather(const void* mine, void* all, i64 bytes) final { control_.all_gather(mine, all, bytes); }
  void broadcast(void* data, i64 bytes, int root) final { control_.broadcast(data, bytes, root); }
  void all_reduce_sum(float* data, i64 count) final { control_.all_reduce_sum(data, count); }
  void all_reduce_sum(double* data, i64 count) final { control_.all_reduce_sum(data, count); }
  void all_reduce_sum(i64* data, i64 count) final { control_.all_reduce_sum(data, count); }
  void reduce_scatter_sum(const float* parts, float* mine, i64 count) final {
    control_.reduce_scatter_sum(parts, mine, count);
  }
  void reduce_scatter_sum(const double* parts, double* mine, i64 count) final {
    control_.reduce_scatter_sum(parts, mine, count);
  }
  void abort(const CommunicationFault& fault) override { control_.abort(fault); }
  [[nodiscard]] const CommOptions& options() const final { return control_.options(); }

 protected:
  [[nodiscard]] Communicator& control() { return control_; }
  [[nodiscard]] const Communicator& control() const { return control_; }
  /// Refuses a message to a rank that does not exist or to the rank itself (UsageError).
  void check_peer(const Message& message) const;

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& control_;
};

}  // namespace usp::comm
