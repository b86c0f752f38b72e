// SPDX-License-Identifier: Apache-2.0
#include "../fresh.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/boxes.hpp"
#include "usp/kernels/numeric_types.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace usp {
namespace {

/// Any element as fp64.
[[nodiscard]] double load(ConstView view, i64 b, i64 row, i64 head, i64 i) {
  const std::byte* at = view.at(b, row, head) + i * bytes_of(view.type);
  switch (view.type) {
    case DType::bf16:
      return static_cast<double>(to_float(*reinterpret_cast<const bf16*>(at)));
    case DType::fp16:
      return static_cast<double>(to_float(*reinterpret_cast<const fp16*>(at)));
    case DType::fp32:
      return static_cast<double>(*reinterpret_cast<const float*>(at));
    case DType::fp64:
      return *reinterpret_cast<const double*>(at);
  }
  throw InternalError("unknown element type");
}

void store(View view, i64 b, i64 row, i64 head, i64 i, double x) {
  std::byte* at = view.at(b, row, head) + i * bytes_of(view.type);
  if (view.type == DType::fp64)
    *reinterpret_cast<double*>(at) = x;
  else
    *reinterpret_cast<float*>(at) = static_cast<float>(x);
}

/// To an accumulator: fp64 or fp32.
void add(const View& view, i64 b, i64 row, i64 head, i64 i, double x) {
  if (view.type == DType::fp64)
    reinterpret_cast<double*>(view.at(b, row, head))[i] += x;
  else
    store(view, b, row, head, i, load(view, b, row, head, i) + x);
}

/// Rows that the slices of a call name. Others may be on their way in meanwhile: nobody may look at them.
[[nodiscard]] std::vector<Range> query_rows(const AttendScope& scope) {
  std::vector<Range> rows;
  for (const Slice* s = scope.slices; s != scope.slices + scope.slice_count; ++s)
    rows.push_back({s->q_row, s->q_row + s->q_count});
  return rows;
}
[[nodiscard]] std::vector<Range> key_rows(const AttendScope& scope) {
  std::vector<Range> rows;
  for (const Slice* s = scope.slices; s != scope.slices + scope.slice_count; ++s)
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
    for (const Range& range : rows) copy_box(view, {range, heads}, packed, {range, heads}, Land::put);
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

[[nodiscard]] double dot(const double* a, const double* b, i64 count) {
  double sum = 0;
  for (i64 i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// A pair's logit, how it depends on scale * q.k, and what dropout makes of its probability.
struct Logit {
  bool visible = false;
  double value = 0;
  double slope = 1;  ///< d value / d (scale * q.k)
  double keep = 1;   ///< 0 when dropped, else 1 / (1 - dropout)
};

class Pairs {
 public:
  Pairs(const ConstView& q, const ConstView& k, const AttendScope& scope)
      : q_(q, query_rows(scope), scope.query_heads),
        k_(k, key_rows(scope), scope.kv_heads()),
        scope_(scope),
        terms_(*scope.terms) {}

  [[nodiscard]] Logit logit(const Slice& s, i64 b, i64 head, i64 i, i64 j) const {
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
    if (terms_.alibi_slopes != nullptr)
      out.value -= terms_.alibi_slopes[head] * static_cast<double>(x > y ? x - y : y - x);
    if (terms_.dropout != 0)
      out.keep = dropout_bits(terms_.dropout_seed, {b, head, x, y}) < dropout_threshold(terms_.dropout)
                     ? 0
                     : 1 / (1 - terms_.dropout);
    return out;
  }

 private:
  Doubles q_, k_;
  const AttendScope& scope_;
  const ScoreTerms& terms_;
};

class ReferenceKernel final : public AttentionKernel {
 public:
  [[nodiscard]] const char* name() const override { return "reference"; }

  void attend(const AttendArgs& a) override {
    check(a);
    begin_fresh(a);
    const AttendScope& scope = a.scope;
    if (scope.query_heads.empty()) return;
    const Pairs pairs(a.q, a.k, scope);
    const Doubles v(a.v, key_rows(scope), scope.kv_heads());
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a.q.batch; ++b)
        for (i64 head = scope.query_heads.begin; head < scope.query_heads.end; ++head)
          for (i64 i = 0; i < scope.slices[n].q_count; ++i)
            attend_row(a, pairs, v, {scope.slices + n, b, head, i});
  }

  void delta(const DeltaArgs& a) override {
    check(a);
    for (i64 head = a.query_heads.begin; head < a.query_heads.end; ++head)
      for (i64 b = 0; b < a.o.batch; ++b)
        for (i64 r = 0; r < a.o.rows; ++r) {
          double sum = 0;
          for (i64 w = 0; w < a.o.width; ++w) sum += load(a.d_o, b, r, head, w) * load(a.o, b, r, head, w);
          store(a.delta, b, r, head, 0, sum);
          if (a.sink != nullptr) a.d_sink[head] -= std::exp(a.sink[head] - load(a.lse, b, r, head, 0)) * sum;
        }
  }

  void attend_grad(const AttendGradArgs& a) override {
    check(a);
    begin_fresh(a);
    const AttendScope& scope = a.scope;
    if (scope.query_heads.empty()) return;
    const std::vector<Range> queries = query_rows(scope), keys = key_rows(scope);
    const Range heads = scope.query_heads, kv_heads = scope.kv_heads();
    const GradInputs in{Pairs(a.q, a.k, scope), Doubles(a.q, queries, heads), Doubles(a.k, keys, kv_heads),
                        Doubles(a.v, keys, kv_heads), Doubles(a.d_o, queries, heads)};
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a.q.batch; ++b)
        for (i64 head = scope.query_heads.begin; head < scope.query_heads.end; ++head)
          for (i64 i = 0; i < scope.slices[n].q_count; ++i) grad_row(a, in, {scope.slices + n, b, head, i});
  }

 private:
  /// One query row of one slice.
  struct RowOf {
    const Slice* slice;
    i64 b, head, i;
    [[nodiscard]] i64 row() const { return slice->q_row + i; }
  };
  struct GradInputs {
    Pairs pairs;
    Doubles q, k, v, d_o;
  };

  /// Two passes over the keys of the slice, then a merge shifted by the greater maximum.
  void attend_row(const AttendArgs& a, const Pairs& pairs, const Doubles& v, const RowOf& r) {
    const Slice& s = *r.slice;
    logits_.resize(static_cast<std::size_t>(s.k_count));
    const double old = load(a.lse, r.b, r.row(), r.head, 0);
    double top = old;
    bool any = false;
    for (i64 j = 0; j < s.k_count; ++j) {
      Logit& x = logits_[static_cast<std::size_t>(j)] = pairs.logit(s, r.b, r.head, r.i, j);
      if (!x.visible) continue;
      any = true;
      top = std::max(top, x.value);
    }
    if (!any || std::isinf(top)) return;
    double sum = std::exp(old - top);
    for (const Logit& x : logits_)
      if (x.visible) sum += std::exp(x.value - top);
    const double lse = top + std::log(sum), carried = std::exp(old - lse);
    sums_.assign(static_cast<std::size_t>(v.width()), 0);
    for (i64 w = 0; carried != 0 && w < v.width(); ++w)
      sums_[static_cast<std::size_t>(w)] = carried * load(a.o, r.b, r.row(), r.head, w);
    for (i64 j = 0; j < s.k_count; ++j) {
      const Logit& x = logits_[static_cast<std::size_t>(j)];
      if (!x.visible || x.keep == 0) continue;
      const double p = std::exp(x.value - lse) * x.keep;
      const double* value = v.row(r.b, s.k_row + j, r.head / a.scope.group);
      for (i64 w = 0; w < v.width(); ++w) sums_[static_cast<std::size_t>(w)] += p * value[w];
    }
    for (i64 w = 0; w < v.width(); ++w)
      store(a.o, r.b, r.row(), r.head, w, sums_[static_cast<std::size_t>(w)]);
    store(a.lse, r.b, r.row(), r.head, 0, lse);
  }

  static void grad_row(const AttendGradArgs& a, const GradInputs& in, const RowOf& r) {
    const Slice& s = *r.slice;
    const double lse = load(a.lse, r.b, r.row(), r.head, 0);
    if (std::isinf(lse)) return;
    const double delta = load(a.delta, r.b, r.row(), r.head, 0);
    const i64 kv = r.head / a.scope.group;
    const double *q = in.q.row(r.b, r.row(), r.head), *d_o = in.d_o.row(r.b, r.row(), r.head);
    for (i64 j = 0; j < s.k_count; ++j) {
      const Logit x = in.pairs.logit(s, r.b, r.head, r.i, j);
      if (!x.visible) continue;
      const double p = std::exp(x.value - lse);
      const double dp = dot(d_o, in.v.row(r.b, s.k_row + j, kv), a.v.width);
      if (x.keep != 0)
        for (i64 w = 0; w < a.v.width; ++w) add(a.dv, r.b, s.dk_row + j, kv, w, p * x.keep * d_o[w]);
      const double ds = p * (x.keep * dp - delta) * x.slope * a.scope.terms->scale;
      const double* k = in.k.row(r.b, s.k_row + j, kv);
      for (i64 w = 0; w < a.q.width; ++w) {
        add(a.dq, r.b, r.row(), r.head, w, ds * k[w]);
        add(a.dk, r.b, s.dk_row + j, kv, w, ds * q[w]);
      }
    }
  }

  std::vector<double> sums_;
  std::vector<Logit> logits_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_reference_kernel() {
  return std::make_unique<ReferenceKernel>();
}

}  // namespace usp
