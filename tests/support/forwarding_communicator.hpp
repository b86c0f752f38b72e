// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace usp::test {

/// Forwards every call to another communicator: what a test changes about it, it overrides.
class ForwardingCommunicator : public comm::Communicator {
 public:
  explicit ForwardingCommunicator(comm::Communicator& inner) : inner_(inner) {}
  explicit ForwardingCommunicator(std::unique_ptr<comm::Communicator> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  [[nodiscard]] const char* name() const override { return inner_.name(); }
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  void post(const comm::Message* messages, i64 count, comm::Ticket* tickets) override {
    inner_.post(messages, count, tickets);
  }
  i64 wait(comm::Ticket ticket) override { return inner_.wait(ticket); }
  [[nodiscard]] std::optional<i64> test(comm::Ticket ticket) override { return inner_.test(ticket); }
  [[nodiscard]] bool capturable() const override { return inner_.capturable(); }
  void progress() override { inner_.progress(); }
  void reserve(i64 messages, i64 regions) override { inner_.reserve(messages, regions); }
  [[nodiscard]] const comm::CommOptions& options() const override { return inner_.options(); }
  [[nodiscard]] std::unique_ptr<comm::Communicator> group(const std::vector<int>& ranks) override {
    return inner_.group(ranks);
  }
  void barrier() override { inner_.barrier(); }
  void all_gather(const void* mine, void* all, i64 bytes) override { inner_.all_gather(mine, all, bytes); }
  void broadcast(void* data, i64 bytes, int root) override { inner_.broadcast(data, bytes, root); }
  void all_reduce_sum(float* data, i64 count) override { inner_.all_reduce_sum(data, count); }
  void all_reduce_sum(double* data, i64 count) override { inner_.all_reduce_sum(data, count); }
  void all_reduce_sum(i64* data, i64 count) override { inner_.all_reduce_sum(data, count); }
  void reduce_scatter_sum(const float* parts, float* mine, i64 count) override {
    inner_.reduce_scatter_sum(parts, mine, count);
  }
  void reduce_scatter_sum(const double* parts, double* mine, i64 count) override {
    inner_.reduce_scatter_sum(parts, mine, count);
  }
  void abort(const comm::CommunicationFault& fault) override { inner_.abort(fault); }

 protected:
  [[nodiscard]] comm::Communicator& inner() { return inner_; }

 private:
  std::unique_ptr<comm::Communicator> owned_;
  comm::Communicator& inner_;
};

}  // namespace usp::test
