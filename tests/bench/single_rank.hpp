// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_noise.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"

#include <cstring>

namespace usp::bench {

/// A rank whose peers are not there: whatever it receives is noise, or what lay there already.
class SingleRank final : public comm::Communicator {
 public:
  SingleRank(int rank, int size, device::StreamHandle stream) : rank_(rank), size_(size), stream_(stream) {}
  /// Whether receives write noise.
  void arrive(bool noise) { noise_ = noise; }

  [[nodiscard]] const char* name() const override { return "single"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] const comm::CommOptions& options() const override { return options_; }
  void post(const comm::Message* messages, i64 count, comm::Ticket* tickets) override {
    for (i64 i = 0; i < count; ++i) {
      tickets[i] = 0;
      if (!noise_ || messages[i].send) continue;
      for (i64 b = 0; b < messages[i].region_count; ++b) fill(messages[i].regions[b]);
    }
  }
  i64 wait(comm::Ticket /*ticket*/) override { return 0; }
  [[nodiscard]] std::optional<i64> test(comm::Ticket /*ticket*/) override { return 0; }
  void progress() override {}
  void reserve(i64 /*messages*/, i64 /*regions*/) override {}
  [[nodiscard]] std::unique_ptr<comm::Communicator> group(const std::vector<int>& /*ranks*/) override {
    throw InternalError("a single rank has no groups");
  }
  void barrier() override {}
  void all_gather(const void* mine, void* all, i64 bytes) override {
    for (int r = 0; r < size_; ++r)
      std::memcpy(static_cast<std::byte*>(all) + r * bytes, mine, static_cast<std::size_t>(bytes));
  }
  void broadcast(void* /*data*/, i64 /*bytes*/, int /*root*/) override {}
  void all_reduce_sum(float* /*data*/, i64 /*count*/) override {}
  void all_reduce_sum(double* /*data*/, i64 /*count*/) override {}
  void all_reduce_sum(i64* /*data*/, i64 /*count*/) override {}
  void reduce_scatter_sum(const float* /*parts*/, float* /*mine*/, i64 /*count*/) override {}
  void reduce_scatter_sum(const double* /*parts*/, double* /*mine*/, i64 /*count*/) override {}
  void abort(const comm::CommunicationFault& /*fault*/) override {}

 private:
  void fill(const comm::StridedBytes& region) {
    if (region.count[0] == 1 && region.count[1] == 1 && region.count[2] == 1)
      fill_with_noise(region.data, region.run_bytes, stream_, ++seed_);
  }

  int rank_, size_;
  comm::CommOptions options_;
  device::StreamHandle stream_;
  bool noise_ = true;
  unsigned seed_ = 0;
};

}  // namespace usp::bench
