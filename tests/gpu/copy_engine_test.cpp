// SPDX-License-Identifier: Apache-2.0
#include "communicator_contract.hpp"
#include "gpu_rank.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

/// The copy engines under the contract of all communicators: a completed message is complete for the host
/// too.
class Completed final : public Communicator {
 public:
  Completed(Communicator& inner, const Stream& stream) : inner_(inner), stream_(stream) {}
  Completed(std::unique_ptr<Communicator> inner, const Stream& stream)
      : owned_(std::move(inner)), inner_(*owned_), stream_(stream) {}

  const char* name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void post(const Message* messages, i64 count, Ticket* tickets) override {
    inner_.post(messages, count, tickets);
  }
  void wait(Ticket ticket) override {
    inner_.wait(ticket);
    stream_.synchronize();
  }
  bool test(Ticket ticket) override {
    if (!inner_.test(ticket)) return false;
    stream_.synchronize();
    return true;
  }
  void progress() override { inner_.progress(); }
  void reserve(i64 messages, i64 boxes) override { inner_.reserve(messages, boxes); }
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override {
    auto group = inner_.group(ranks);
    if (group == nullptr) return nullptr;
    return std::make_unique<Completed>(std::move(group), stream_);
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
  void abort(const CommunicationFault& fault) override { inner_.abort(fault); }
  Traffic& traffic() override { return inner_.traffic(); }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  const Stream& stream_;
};

class CopyEngine : public testing::TestWithParam<int> {};

TEST_P(CopyEngine, KeepsTheContract) {
  if (device_count() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_NO_THROW(run_threads(GetParam(), {}, [](Communicator& control) {
    GpuRank rank(control);
    Completed communicator(*rank.communicator, rank.stream);
    contract::run_checks(communicator);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CopyEngine, testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace usp::test
