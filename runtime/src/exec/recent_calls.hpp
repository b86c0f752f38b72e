// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/data_plane.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <memory>

namespace usp {

/// What ranks have agreed on for the calls of one plan and batch.
struct RecentCall {
  std::uint64_t key = 0;                                    ///< Prepared::call_key
  bool compared = false;                                    ///< ExecutorOptions::compare_inputs
  std::array<std::unique_ptr<comm::Channels>, 2> channels;  ///< of both passes; null: not connected
};

/// The last calls by key. Ranks make the same calls in the same order, so that all find the same one new,
/// also where some have dropped and made anew what they prepared.
class RecentCalls {
 public:
  /// The call of a key, which is the last one from then on.
  [[nodiscard]] RecentCall& of(std::uint64_t key) {
    const auto known = std::ranges::find(calls_, key, &RecentCall::key);
    if (known != calls_.end()) {
      calls_.splice(calls_.begin(), calls_, known);
      return calls_.front();
    }
    if (calls_.size() >= kept) calls_.pop_back();
    calls_.emplace_front().key = key;
    return calls_.front();
  }
  /// All calls are new again.
  void clear() { calls_.clear(); }
  /// Whether the call is known and connected; its place stays.
  [[nodiscard]] bool connected(std::uint64_t key) const {
    const auto known = std::ranges::find(calls_, key, &RecentCall::key);
    return known != calls_.end() && known->channels[0] != nullptr;
  }

 private:
  static constexpr std::size_t kept = 256;
  std::list<RecentCall> calls_;  ///< the last one first
};

}  // namespace usp
