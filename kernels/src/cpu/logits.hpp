// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "panel.hpp"
#include "scratch.hpp"

#include "usp/kernels/attention_args.hpp"

namespace usp::kernels::cpu {

constexpr double log2_e = 1.442695040888963407;

/// Logits of parts of panels, in units of log 2, with all score terms and masks of a call.
template <class T>
class Logits {
 public:
  Logits(const TileOps<T>& ops, const AttendScope& scope) : ops_(ops), scope_(scope), terms_(*scope.terms) {}

  void cut(Scratch& scratch) {
    const i64 width = ops_.max_vectors * ops_.lanes;
    scratch.take(low_, width);
    scratch.take(high_, width);
    scratch.take(columns_, keys_per_tile(ops_));
  }
  void begin(const schedule::Slice& slice, i64 batch) {
    slice_ = &slice;
    batch_ = batch;
  }

  /// What queries are multiplied with when packed.
  [[nodiscard]] T query_factor() const {
    return static_cast<T>(terms_.softcap != 0 ? terms_.scale / terms_.softcap : terms_.scale * log2_e);
  }

  /// Keys of the tile (counted from tile.begin) that the panel sees; empty when it sees none.
  [[nodiscard]] Range seen(const Panel& panel, Range tile) const {
    const Range keys{std::max<i64>(panel.any.begin - tile.begin, 0),
                     std::min(panel.any.end, tile.end) - tile.begin};
    if (keys.empty() || !blocks_admit(panel, tile, keys)) return {0, 0};
    return keys;
  }

  /// Fills keys `seen` of `out` ([key][vectors * lanes]) and, where not null, the softcap's slope.
  void compute(const Panel& panel, Range tile, Range seen, const T* key_strips, i64 width, const T* queries,
               T* out, T* slope) const {
    const PanelPart<T> part{out, seen, panel.vectors};
    ops_.strip_product(product_of_keys(ops_, part, key_strips, width, queries));
    if (terms_.softcap != 0) ops_.softcap(part, static_cast<T>(terms_.softcap * log2_e), slope);
    if (terms_.alibi_slopes != nullptr) add_alibi(panel, tile, part);
    if (panel.all.begin > tile.begin + seen.begin || panel.all.end < tile.begin + seen.end)
      mask_rows(panel, tile, part);
    if (terms_.blocks != nullptr) mask_blocks(panel, tile, part);
  }

  /// What dropout leaves of the probabilities of these pairs: 0 or 1 / (1 - dropout).
  void keep(const Panel& panel, Range tile, Range seen, T* out) const {
    const PairNames names{terms_.dropout_seed, batch_,
                          panel.head,          slice_->q_pos + panel.first * slice_->q_step,
                          slice_->q_step,      slice_->k_pos + tile.begin * slice_->k_step,
                          slice_->k_step,      dropout_threshold(terms_.dropout)};
    ops_.keep({out, seen, panel.vectors}, names, static_cast<T>(1 / (1 - terms_.dropout)));
  }

 private:
  [[nodiscard]] i64 q_pos(i64 row) const { return slice_->q_pos + row * slice_->q_step; }
  [[nodiscard]] i64 k_pos(i64 key) const { return slice_->k_pos + key * slice_->k_step; }
  [[nodiscard]] const std::uint8_t* block_row(const Panel& panel, i64 row) const {
    const BlockMask& mask = *terms_.blocks;
    return mask.admitted + (panel.head * mask.rows + q_pos(panel.first + row) / mask.block_q) * mask.columns;
  }

  void add_alibi(const Panel& panel, Range tile, const PanelPart<T>& part) const {
    const Distances<T> distances{static_cast<T>(q_pos(panel.first) - k_pos(tile.begin)),
                                 static_cast<T>(slice_->q_step), static_cast<T>(slice_->k_step)};
    ops_.alibi(part, static_cast<T>(terms_.alibi_slopes[panel.head] * log2_e), distances);
  }

  void mask_rows(const Panel& panel, Range tile, const PanelPart<T>& part) const {
    for (i64 i = 0; i < panel.vectors * ops_.lanes; ++i) {
      const Range keys = i < panel.count ? panel.rows[i] : Range{0, 0};
      low_[i] = static_cast<T>(std::clamp<i64>(keys.begin - tile.begin, 0, tile.size()));
      high_[i] = static_cast<T>(std::clamp<i64>(keys.end - tile.begin, 0, tile.size()));
    }
    ops_.mask(part, low_, high_);
  }

  /// Whether the block mask admits any pair of the panel's rows and these keys.
  [[nodiscard]] bool blocks_admit(const Panel& panel, Range tile, Range keys) const {
    if (terms_.blocks == nullptr) return true;
    const std::uint8_t* known = nullptr;
    for (i64 i = 0; i < panel.count; ++i) {
      const std::uint8_t* row = block_row(panel, i);
      if (row == known) continue;
      known = row;
      for (i64 j = keys.begin; j < keys.end; ++j)
        if (row[k_pos(tile.begin + j) / terms_.blocks->block_k] != 0) return true;
    }
    return false;
  }

  void mask_blocks(const Panel& panel, Range tile, const PanelPart<T>& part) const {
    for (i64 j = part.keys.begin; j < part.keys.end; ++j)
      columns_[j] = k_pos(tile.begin + j) / terms_.blocks->block_k;
    const i64 width = panel.vectors * ops_.lanes;
    for (i64 i = 0; i < panel.count; ++i) {
      const std::uint8_t* row = block_row(panel, i);
      for (i64 j = part.keys.begin; j < part.keys.end; ++j)
        if (row[columns_[j]] == 0) part.tile[j * width + i] = -std::numeric_limits<T>::infinity();
    }
  }

  const TileOps<T>& ops_;
  const AttendScope& scope_;
  const ScoreTerms& terms_;
  const schedule::Slice* slice_ = nullptr;
  i64 batch_ = 0;
  T* low_ = nullptr;
  T* high_ = nullptr;
  i64* columns_ = nullptr;
};

}  // namespace usp::kernels::cpu
