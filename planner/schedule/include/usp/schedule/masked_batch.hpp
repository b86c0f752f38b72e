// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace usp::schedule {

/// A packed batch under a mask, and what is asked of it over and over. Geometries of one search share it.
class MaskedBatch {
 public:
  MaskedBatch(std::shared_ptr<const Documents> documents, Band band);

  [[nodiscard]] const Documents& documents() const { return *documents_; }
  /// Several documents that attend to themselves, each token at least to itself: a stretch of whole documents
  /// in one place is described by its tokens and its sum of pairs alone.
  [[nodiscard]] bool sums_documents() const { return !pairs_before_.empty(); }
  /// Visible pairs of the documents [begin, end). Expects sums_documents().
  [[nodiscard]] i128 pairs(std::size_t begin, std::size_t end) const {
    return pairs_before_[end] - pairs_before_[begin];
  }

 private:
  std::shared_ptr<const Documents> documents_;
  std::vector<i128> pairs_before_;  ///< by document, and the sum of all; empty: not summed
};

}  // namespace usp::schedule
