// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace usp {

/// The last calls by key. Ranks make the same calls in the same order, so that all find the same one new,
/// also where some have dropped and made anew what they prepared.
class RecentCalls {
 public:
  /// Whether the call is not among the last ones; it is from then on.
  [[nodiscard]] bool add(std::uint64_t key) {
    const auto known = std::find(keys_.begin(), keys_.end(), key);
    const bool is_new = known == keys_.end();
    if (!is_new) keys_.erase(known);
    keys_.push_back(key);
    if (keys_.size() > kept) keys_.erase(keys_.begin());
    return is_new;
  }

 private:
  static constexpr std::size_t kept = 256;
  std::vector<std::uint64_t> keys_;  ///< the last one last
};

}  // namespace usp
