// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/masked_batch.hpp"

#include "usp/schedule/slice.hpp"

#include <algorithm>
#include <utility>

namespace usp::schedule {
namespace {

i128 pairs_of(i64 tokens, Band band) {
  Slice document;
  document.q_count = document.k_count = tokens;
  document.diff_min = band.diff_min, document.diff_max = band.diff_max;
  return tokens > 0 ? area(document) : 0;
}

}  // namespace

MaskedBatch::MaskedBatch(std::shared_ptr<const Documents> documents, Band band)
    : documents_(std::move(documents)) {
  const Documents& all = *documents_;
  const std::vector<i64>& cu = all.cu_q;
  const auto still = [](i64 shift) { return shift == 0; };
  if (all.count() < 2 || band.diff_min > 0 || band.diff_max < 0 || cu != all.cu_k ||
      cu.size() != all.count() + 1 || !std::is_sorted(cu.begin(), cu.end()) ||
      !std::all_of(all.shift.begin(), all.shift.end(), still))
    return;
  pairs_before_.reserve(cu.size());
  pairs_before_.push_back(0);
  for (std::size_t d = 0; d < all.count(); ++d)
    pairs_before_.push_back(pairs_before_.back() + pairs_of(cu[d + 1] - cu[d], band));
}

}  // namespace usp::schedule
