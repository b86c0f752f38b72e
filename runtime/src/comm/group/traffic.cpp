// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/comm/message.hpp"

#include <algorithm>
#include <numeric>

namespace usp::comm {

void Traffic::reset(int ticks, int ranks) {
  ticks_ = ticks;
  ranks_ = ranks;
  sums_ = false;
  counts_.assign(static_cast<std::size_t>(ticks) * static_cast<std::size_t>(ranks) * 2, 0);
}

void Traffic::reset_sums() {
  reset(1, 1);
  sums_ = true;
}

void Traffic::count(std::int32_t tick, int peer, bool send, i64 bytes) {
  if (tick < 0) return;
  if (sums_) tick = peer = 0;
  expects(peer >= 0 && peer < ranks_, "traffic with a rank that was not reset for");
  if (tick >= ticks_) {
    counts_.resize(static_cast<std::size_t>(tick + 1) * static_cast<std::size_t>(ranks_) * 2, 0);
    ticks_ = tick + 1;
  }
  counts_[(static_cast<std::size_t>(tick) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(peer)) *
              2 +
          (send ? 1 : 0)] += bytes;
}

i64 Traffic::bytes(std::int32_t tick, int peer, bool send) const {
  if (tick < 0 || tick >= ticks_ || peer >= ranks_) return 0;
  return counts_[(static_cast<std::size_t>(tick) * static_cast<std::size_t>(ranks_) +
                  static_cast<std::size_t>(peer)) *
                     2 +
                 (send ? 1 : 0)];
}

Traffic Traffic::summed() const {
  Traffic sums;
  sums.ticks_ = sums.ranks_ = 1;
  sums.counts_ = {total(false), total(true)};
  return sums;
}

i64 Traffic::total(bool send) const {
  i64 sum = 0;
  for (std::size_t i = send ? 1 : 0; i < counts_.size(); i += 2) sum += counts_[i];
  return sum;
}

}  // namespace usp::comm
