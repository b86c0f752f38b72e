// SPDX-License-Identifier: Apache-2.0
#include "../empty_state.hpp"
#include "../host_step.hpp"
#include "load.hpp"
#include "pairs.hpp"

#include "usp/kernels/backends.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace usp::kernels {
namespace {

using reference::dot;
using reference::Doubles;
using reference::key_rows;
using reference::load;
using reference::Logit;
using reference::Pairs;
using reference::query_rows;

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

class ReferenceKernel final : public AttentionKernel {
 public:
  [[nodiscard]] const char* name() const override { return "reference"; }

  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& given) override {
    check(given);
    return make_host_step(given, [this](const AttendArgs& a) { attend(a); });
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& given) override {
    check(given);
    return make_host_step(given, [](const AttendGradArgs& a) { attend_grad(a); });
  }

  void delta(const DeltaArgs& a) override {
    check(a);
    for (i64 head = a.query_heads.begin; head < a.query_heads.end; ++head)
      for (i64 b = 0; b < a.o.batch; ++b)
        for (i64 r = 0; r < a.o.rows; ++r) {
          double sum = 0;
          for (i64 w = 0; w < a.o.width; ++w) sum += load(a.d_o, b, r, head, w) * load(a.o, b, r, head, w);
          store(a.delta, b, r, head, 0, sum);
          if (a.sink != nullptr)
            a.d_sink[head] -= std::exp(std::min(0.0, a.sink[head] - load(a.lse, b, r, head, 0))) * sum;
        }
  }

 private:
  /// One query row of one slice.
  struct RowOf {
    const schedule::Slice* slice;
    i64 b, head, i;
    [[nodiscard]] i64 row() const { return slice->q_row + i; }
  };
  struct GradInputs {
    Pairs pairs;
    Doubles q, k, v, d_o;
  };

  void attend(const AttendArgs& a) {
    begin_empty(a);
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

  static void attend_grad(const AttendGradArgs& a) {
    begin_empty(a);
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

  /// Two passes over the keys of the slice, then a merge shifted by the greater maximum.
  void attend_row(const AttendArgs& a, const Pairs& pairs, const Doubles& v, const RowOf& r) {
    const schedule::Slice& s = *r.slice;
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
    const schedule::Slice& s = *r.slice;
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

}  // namespace usp::kernels
