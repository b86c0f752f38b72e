// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/verify.hpp"

#include "../exec/score.hpp"
#include "call_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/boxes.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>

namespace usp {
namespace {

/// Calls `body` for 0 to count - 1 on all cores.
template <class Body>
void on_all_cores(int count, const Body& body) {
  std::atomic<int> next{0};
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::exception_ptr> errors(cores);
  std::vector<std::thread> threads;
  for (unsigned c = 0; c < cores; ++c)
    threads.emplace_back([&, c] {
      try {
        for (int i = next++; i < count; i = next++) body(i);
      } catch (...) {
        errors[c] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The state before the first pair: nothing, or the sink alone.
void start_lse(const AttentionPlan& plan, const CallTensors& tensors, HostTensor& lse) {
  const View view = lse.view();
  fill(view, -std::numeric_limits<double>::infinity());
  if (!plan.sink) return;
  for (i64 b = 0; b < view.batch; ++b)
    for (i64 row = 0; row < view.rows; ++row)
      std::memcpy(view.at(b, row, 0), tensors.sink.data(), tensors.sink.size() * sizeof(double));
}

/// Sums of squares of what is compared, part by part.
struct Deviation {
  double top = 0, bottom = 0;
  i64 count = 0;
  void add(double value, double truth) {
    if (std::isinf(truth) && value == truth) return;
    ++count;
    top += (value - truth) * (value - truth);
    bottom += truth * truth;
  }
  void add(const HostTensor& values, const HostTensor& truth) {
    const HostTensor a = values.as(DType::fp64);
    expects(a.bytes().size() == truth.bytes().size(), "results and truth differ in shape");
    for (std::size_t at = 0; at < a.bytes().size(); at += sizeof(double)) {
      double x, y;
      std::memcpy(&x, a.bytes().data() + at, sizeof x);
      std::memcpy(&y, truth.bytes().data() + at, sizeof y);
      add(x, y);
    }
  }
  /// Root of the ratio; what is compared counts as at least `least` in the mean square.
  [[nodiscard]] double ratio(double least = 0) const {
    if (top == 0) return 0;
    const double whole = std::max(bottom, least * static_cast<double>(count));
    return whole == 0 ? std::sqrt(top) : std::sqrt(top / whole);
  }
};

/// Every copy of a row counts.
double copies_error(const std::vector<Part>& parts, const HostTensor& truth) {
  Deviation sum;
  for (const Part& part : parts) {
    const HostTensor rows = truth.rows_of(part.tokens);
    const ConstView view = part.rows.view(), all = rows.view();
    HostTensor wanted(DType::fp64, view.batch, view.rows, view.heads, view.width);
    copy_box(all, {{0, all.rows}, view.heads}, wanted.view(), {{0, view.rows}, view.heads}, Land::put);
    sum.add(part.rows, wanted);
  }
  return sum.ratio();
}

double sum_error(const std::vector<Part>& parts, const HostTensor& truth, double least) {
  Deviation sum;
  sum.add(assemble(parts, truth.view().rows, true), truth);
  return sum.ratio(least);
}

double mean_square(const HostTensor& truth) {
  Deviation sum;
  sum.add(truth, truth);
  return sum.count == 0 ? 0 : sum.bottom / static_cast<double>(sum.count);
}

/// A gradient that vanishes, as that of the scores where every row sees one key, is rounding alone: it is
/// held against a quarter of the greatest gradient's RMS.
double least_mean_square(const DenseResults& truth) {
  return std::max({mean_square(truth.dq), mean_square(truth.dk), mean_square(truth.dv)}) / 16;
}

}  // namespace

DenseResults dense_attention(const AttentionPlan& plan, const Documents& documents,
                             const CallTensors& tensors, bool training) {
  const AttentionShape& s = plan.shape;
  const i64 queries = documents.cu_q.back(), keys = documents.cu_k.back();
  const Range heads{0, s.query_heads}, kv{0, s.kv_heads};
  DenseResults r;
  r.out = HostTensor(DType::fp64, s.batch, queries, heads, s.head_dim_v);
  r.lse = HostTensor(DType::fp64, s.batch, queries, heads, 1);
  start_lse(plan, tensors, r.lse);
  HostTensor delta(DType::fp64, s.batch, queries, heads, 1), d_out;
  const HostTensor q = tensors.q.as(DType::fp64), k = tensors.k.as(DType::fp64),
                   v = tensors.v.as(DType::fp64);
  if (training) {
    d_out = tensors.d_out.as(DType::fp64);
    r.dq = HostTensor(DType::fp64, s.batch, queries, heads, s.head_dim_qk);
    r.dk = HostTensor(DType::fp64, s.batch, keys, kv, s.head_dim_qk);
    r.dv = HostTensor(DType::fp64, s.batch, keys, kv, s.head_dim_v);
    if (plan.sink) r.d_sink.assign(static_cast<std::size_t>(s.query_heads), 0);
  }
  const std::vector<Slice> slices = document_slices(plan.band, documents);
  const BlockMask blocks = block_mask(plan, documents, tensors);
  const AttentionInputs inputs = per_head_inputs(plan, tensors, blocks);
  const ScoreTerms terms = score_terms(plan, inputs);
  const int group = s.query_heads / s.kv_heads;
  on_all_cores(s.kv_heads, [&](int kv_head) {  // gradients of a KV head are one core's
    const auto kernel = make_reference_kernel();
    AttendScope scope;
    scope.query_heads = {i64{kv_head} * group, (i64{kv_head} + 1) * group};
    scope.group = group;
    scope.slices = slices.data();
    scope.slice_count = static_cast<i64>(slices.size());
    scope.terms = &terms;
    kernel->attend({q.view(), k.view(), v.view(), r.out.view(), r.lse.view(), scope});
    if (!training) return;
    const HostTensor& d_o = d_out;
    kernel->delta({d_o.view(), r.out.view(), r.lse.view(), delta.view(), scope.query_heads, inputs.sink,
                   plan.sink ? r.d_sink.data() : nullptr});
    kernel->attend_grad({q.view(), k.view(), v.view(), d_o.view(), r.lse.view(), delta.view(), r.dq.view(),
                         r.dk.view(), r.dv.view(), scope});
  });
  return r;
}

CallErrors errors_of(const CallRun& run, const DenseResults& truth) {
  CallErrors errors;
  errors.out = copies_error(run.out, truth.out);
  errors.lse = copies_error(run.lse, truth.lse);
  if (!run.training) return errors;
  const double least = least_mean_square(truth);
  errors.dq = sum_error(run.dq, truth.dq, least);
  errors.dk = sum_error(run.dk, truth.dk, least);
  errors.dv = sum_error(run.dv, truth.dv, least);
  if (truth.d_sink.empty()) return errors;
  Deviation sink;
  for (std::size_t h = 0; h < truth.d_sink.size(); ++h) sink.add(run.d_sink[h], truth.d_sink[h]);
  errors.d_sink = sink.ratio();
  return errors;
}

Tolerance tolerance_of(DType dtype) {
  if (dtype == DType::fp64) return {1e-10, 1e-10};
  if (dtype == DType::fp32) return {1e-5, 1e-5};
  return {1e-2, 2e-2};
}

std::string exceeded(const CallErrors& errors, const Tolerance& tolerance) {
  std::string text;
  const auto check = [&](const char* name, const std::optional<double>& error, double bound) {
    if (!error || *error <= bound) return;
    char words[96];
    std::snprintf(words, sizeof words, "%s is off by %.3g (bound %.3g)", name, *error, bound);
    text += (text.empty() ? "" : ", ") + std::string(words);
  };
  check("out", errors.out, tolerance.output);
  check("lse", errors.lse, tolerance.output);
  check("dq", errors.dq, tolerance.gradient);
  check("dk", errors.dk, tolerance.gradient);
  check("dv", errors.dv, tolerance.gradient);
  check("d_sink", errors.d_sink, tolerance.gradient);
  return text;
}

}  // namespace usp
