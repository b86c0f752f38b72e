// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <limits>

namespace usp::comm {

/// The tag of the library's own messages. They are posted in the same order by both ends of a pair, and
/// messages of one tag meet in order, so that one tag serves all.
constexpr i64 collective_tag = std::numeric_limits<i64>::min();
/// The tick of messages outside a schedule.
constexpr std::int32_t no_tick = -1;

/// Collectives made of messages alone, so that every backend sums in the same order. Each is a direct
/// exchange with all peers: a missing rank is named directly, never through a relay.
class CollectiveCommunicator : public Communicator {
 public:
  void post(const Message* messages, i64 count, Ticket* tickets) final;
  void barrier() final;
  void all_gather(const void* mine, void* all, i64 bytes) final;
  void broadcast(void* data, i64 bytes, int root) final;
  void all_reduce_sum(float* data, i64 count) final;
  void all_reduce_sum(double* data, i64 count) final;
  void all_reduce_sum(i64* data, i64 count) final;
  void reduce_scatter_sum(const float* parts, float* mine, i64 count) final;
  void reduce_scatter_sum(const double* parts, double* mine, i64 count) final;

  /// post() after its checks, for the collectives' own messages too; empty ones come here as well.
  virtual void start(const Message* messages, i64 count, Ticket* tickets) = 0;
};

/// Refuses a group list with repeated ranks or ranks outside the communicator (UsageError), and lists that
/// differ between ranks (DisagreementError). Collective.
void check_group(Communicator& communicator, const std::vector<int>& ranks);

}  // namespace usp::comm
