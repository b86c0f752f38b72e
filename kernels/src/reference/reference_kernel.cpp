// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
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

void add(View view, i64 b, i64 row, i64 head, i64 i, double x) {
  store(view, b, row, head, i, load(view, b, row, head, i) + x);
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
  Pairs(ConstView q, ConstView k, const AttendScope& scope)
      : q_(q), k_(k), scope_(scope), terms_(*scope.terms) {}

  [[nodiscard]] Logit logit(const Slice& s, i64 b, i64 head, i64 i, i64 j) const {
    Logit out;
    const i64 x = s.q_pos + i * s.q_step, y = s.k_pos + j * s.k_step;
    if (x - y < s.diff_min || x - y > s.diff_max) return out;
    if (terms_.blocks != nullptr && !terms_.blocks->admits(head, x, y)) return out;
    out.visible = true;
    double dot = 0;
    for (i64 w = 0; w < q_.width; ++w)
      dot += load(q_, b, s.q_row + i, head, w) * load(k_, b, s.k_row + j, head / scope_.group, w);
    out.value = dot * terms_.scale;
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
  ConstView q_, k_;
  const AttendScope& scope_;
  const ScoreTerms& terms_;
};

class ReferenceKernel final : public AttentionKernel {
 public:
  [[nodiscard]] const char* name() const override { return "reference"; }

  void attend(const AttendArgs& a) override {
    check(a);
    const AttendScope& scope = a.scope;
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a.q.batch; ++b)
        for (i64 head = scope.query_heads.begin; head < scope.query_heads.end; ++head)
          for (i64 i = 0; i < scope.slices[n].q_count; ++i) attend_row(a, scope.slices[n], b, head, i);
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
    const AttendScope& scope = a.scope;
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a.q.batch; ++b)
        for (i64 head = scope.query_heads.begin; head < scope.query_heads.end; ++head)
          for (i64 i = 0; i < scope.slices[n].q_count; ++i) grad_row(a, scope.slices[n], b, head, i);
  }

 private:
  /// One query row against the keys of one slice: two passes, then a merge shifted by the greater maximum.
  void attend_row(const AttendArgs& a, const Slice& s, i64 b, i64 head, i64 i) {
    const Pairs pairs(a.q, a.k, a.scope);
    logits_.resize(static_cast<std::size_t>(s.k_count));
    const double old = load(a.lse, b, s.q_row + i, head, 0);
    double top = old;
    bool any = false;
    for (i64 j = 0; j < s.k_count; ++j) {
      Logit& x = logits_[static_cast<std::size_t>(j)] = pairs.logit(s, b, head, i, j);
      if (!x.visible) continue;
      any = true;
      top = std::max(top, x.value);
    }
    if (!any || std::isinf(top)) return;
    double sum = std::exp(old - top);
    for (const Logit& x : logits_)
      if (x.visible) sum += std::exp(x.value - top);
    const double lse = top + std::log(sum), carried = std::exp(old - lse);
    const i64 kv = head / a.scope.group;
    for (i64 w = 0; w < a.v.width; ++w) {
      double o = carried == 0 ? 0 : carried * load(a.o, b, s.q_row + i, head, w);
      for (i64 j = 0; j < s.k_count; ++j) {
        const Logit& x = logits_[static_cast<std::size_t>(j)];
        if (x.visible && x.keep != 0)
          o += std::exp(x.value - lse) * x.keep * load(a.v, b, s.k_row + j, kv, w);
      }
      store(a.o, b, s.q_row + i, head, w, o);
    }
    store(a.lse, b, s.q_row + i, head, 0, lse);
  }

  static void grad_row(const AttendGradArgs& a, const Slice& s, i64 b, i64 head, i64 i) {
    const double lse = load(a.lse, b, s.q_row + i, head, 0);
    if (std::isinf(lse)) return;
    const Pairs pairs(a.q, a.k, a.scope);
    const double delta = load(a.delta, b, s.q_row + i, head, 0);
    const i64 kv = head / a.scope.group, qr = s.q_row + i;
    for (i64 j = 0; j < s.k_count; ++j) {
      const Logit x = pairs.logit(s, b, head, i, j);
      if (!x.visible) continue;
      const double p = std::exp(x.value - lse);
      double dp = 0;
      for (i64 w = 0; w < a.v.width; ++w) {
        dp += load(a.d_o, b, qr, head, w) * load(a.v, b, s.k_row + j, kv, w);
        add(a.dv, b, s.dk_row + j, kv, w, p * x.keep * load(a.d_o, b, qr, head, w));
      }
      const double ds = p * (x.keep * dp - delta) * x.slope * a.scope.terms->scale;
      for (i64 w = 0; w < a.q.width; ++w) {
        add(a.dq, b, qr, head, w, ds * load(a.k, b, s.k_row + j, kv, w));
        add(a.dk, b, s.dk_row + j, kv, w, ds * load(a.q, b, qr, head, w));
      }
    }
  }

  std::vector<Logit> logits_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_reference_kernel() {
  return std::make_unique<ReferenceKernel>();
}

}  // namespace usp
