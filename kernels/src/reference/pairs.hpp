// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"
#include "usp/kernels/regions.hpp"

#include <cmath>
#include <vector>

namespace usp::kernels::reference {

/// Rows that the slices of a call name. Other rows may still be arriving and must not be read.
[[nodiscard]] inline std::vector<Range> query_rows(const AttendScope& scope) {
  std::vector<Range> rows;
  for (const schedule::Slice* s = scope.slices; s != scope.slices + scope.slice_count; ++s)
    rows.push_back({s->q_row, s->q_row + s->q_count});
  return rows;
}
[[nodiscard]] inline std::vector<Range> key_rows(const AttendScope& scope) {
  std::vector<Range> rows;
  for (const schedule::Slice* s = scope.slices; s != scope.slices + scope.slice_count; ++s)
    rows.push_back({s->k_row, s->k_row + s->k_count});
  return rows;
}

/// A packed fp64 copy of some rows and heads of a view, where they lie in it: what the loops read.
class Doubles {
 public:
  Doubles(const ConstView& view, const std::vector<Range>& rows, Range heads)
      : view_(view), values_(static_cast<std::size_t>(view.elements())) {
    View packed(reinterpret_cast<std::byte*>(values_.data()), DType::fp64, view.batch, view.rows, view.heads,
                view.width);
    for (const Range& range : rows)
      copy_region(view, {range, heads}, packed, {range, heads}, WriteMode::overwrite);
  }
  [[nodiscard]] const double* row(i64 b, i64 r, i64 head) const {
    return values_.data() +
           ((b * view_.rows + r) * view_.heads.size() + head - view_.heads.begin) * view_.width;
  }
  [[nodiscard]] i64 width() const { return view_.width; }

 private:
  ConstView view_;
  std::vector<double> values_;
};

[[nodiscard]] inline double dot(const double* a, const double* b, i64 count) {
  double sum = 0;
  for (i64 i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}
/// The sum of the absolute terms of dot().
[[nodiscard]] inline double dot_terms(const double* a, const double* b, i64 count) {
  double sum = 0;
  for (i64 i = 0; i < count; ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

/// A pair's logit, how it depends on scale * q.k, and what dropout makes of its probability.
struct Logit {
  bool visible = false;
  double value = 0;
  double slope = 1;  ///< d value / d (scale * q.k)
  double bias = 0;   ///< of ALiBi, part of value
  double keep = 1;   ///< 0 when dropped, else 1 / (1 - dropout)
};

class Pairs {
 public:
  Pairs(const ConstView& q, const ConstView& k, const AttendScope& scope)
      : q_(q, query_rows(scope), scope.query_heads),
        k_(k, key_rows(scope), scope.kv_heads()),
        scope_(scope),
        terms_(*scope.terms) {}

  [[nodiscard]] Logit logit(const schedule::Slice& s, i64 b, i64 head, i64 i, i64 j) const {
    Logit out;
    const i64 x = s.q_pos + i * s.q_step, y = s.k_pos + j * s.k_step;
    if (x - y < s.diff_min || x - y > s.diff_max) return out;
    if (terms_.blocks != nullptr && !terms_.blocks->admits(head, x, y)) return out;
    out.visible = true;
    out.value = terms_.scale *
                dot(q_.row(b, s.q_row + i, head), k_.row(b, s.k_row + j, head / scope_.group), q_.width());
    if (terms_.softcap != 0) {
      const double t = std::tanh(out.value / terms_.softcap);
      out.value = terms_.softcap * t;
      out.slope = 1 - t * t;
    }
    if (terms_.alibi_slopes != nullptr) {
      out.bias = -terms_.alibi_slopes[head] * static_cast<double>(x > y ? x - y : y - x);
      out.value += out.bias;
    }
    if (terms_.dropout != 0)
      out.keep = dropout_bits(terms_.dropout_seed, {b, head, x, y}) < dropout_threshold(terms_.dropout)
                     ? 0
                     : 1 / (1 - terms_.dropout);
    return out;
  }

  /// The sum of the absolute terms of q.k, before the scale.
  [[nodiscard]] double product_terms(const schedule::Slice& s, i64 b, i64 head, i64 i, i64 j) const {
    return dot_terms(q_.row(b, s.q_row + i, head), k_.row(b, s.k_row + j, head / scope_.group), q_.width());
  }
  [[nodiscard]] const double* q(i64 b, i64 row, i64 head) const { return q_.row(b, row, head); }
  [[nodiscard]] const double* k(i64 b, i64 row, i64 kv_head) const { return k_.row(b, row, kv_head); }
  [[nodiscard]] const ScoreTerms& terms() const { return terms_; }

 private:
  Doubles q_, k_;
  const AttendScope& scope_;
  const ScoreTerms& terms_;
};

}  // namespace usp::kernels::reference
