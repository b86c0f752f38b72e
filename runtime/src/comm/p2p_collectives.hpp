// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <vector>

namespace usp {

/// Collectives out of point-to-point messages: one implementation, so that sums run in rank order everywhere
/// and the watchdog covers them. Backends derive from this.
class P2pCommunicator : public Communicator {
 public:
  void barrier() override;
  void all_gather(const void* mine, void* all, i64 bytes) override;
  void broadcast(void* data, i64 bytes, int root) override;
  void all_reduce_sum(float* data, i64 count) override;
  void all_reduce_sum(double* data, i64 count) override;
  void all_reduce_sum(i64* data, i64 count) override;
  void reduce_scatter_sum(const float* parts, float* mine, i64 count) override;
  void reduce_scatter_sum(const double* parts, double* mine, i64 count) override;

 private:
  template <class T>
  void reduce(T* data, i64 count);
  template <class T>
  void reduce_scatter(const T* parts, T* mine, i64 count);
  void exchange(std::vector<Message>& messages);
  [[nodiscard]] i64 next_tag() { return (i64{1} << 61) + collectives_++; }

  i64 collectives_ = 0;
};

}  // namespace usp
