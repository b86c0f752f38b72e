// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/verify.hpp"

#include "../exec/score.hpp"
#include "call_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/rounding.hpp"
#include "usp/kernels/score_terms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace usp {
namespace {

/// Of a core at some 3 GHz: a score's exponentials, and one of its products per element.
constexpr double score_base_s = 1.2e-7, product_s = 1.1e-9;

unsigned all_cores() {
  return std::max(1U, std::thread::hardware_concurrency());
}

/// Calls `body` for 0 to count - 1 on all cores, and `waiting` on this thread from time to time.
template <class Body, class Waiting>
void on_all_cores(int count, const Body& body, const Waiting& waiting) {
  constexpr std::chrono::milliseconds pause{50};
  std::atomic<int> next{0};
  unsigned running = all_cores();
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<std::exception_ptr> errors(running);
  std::vector<std::thread> threads;
  for (std::exception_ptr& error : errors)
    threads.emplace_back([&] {
      try {
        for (int i = next++; i < count; i = next++) body(i);
      } catch (...) {
        error = std::current_exception();
        next = count;  // the other threads stop
      }
      const std::lock_guard lock(mutex);
      --running;
      ended.notify_one();
    });
  for (std::unique_lock lock(mutex); !ended.wait_for(lock, pause, [&] { return running == 0; });) waiting();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Sums of squares of what is compared, part by part.
struct Squares {
  double top = 0, bottom = 0, allowed = 0;
  i64 count = 0;
  void add(double value, double truth, double off_at_most) {
    if (std::isinf(truth) && value == truth) return;
    ++count;
    top += (value - truth) * (value - truth);
    bottom += truth * truth;
    allowed += off_at_most * off_at_most;
  }
  /// The tensor counts as at least `least` in the mean square.
  [[nodiscard]] ResultError error(const kernels::Deviation& rows, double least = 0) const {
    const double whole = std::max(bottom, least * static_cast<double>(count));
    const auto root = [&](double sum) {
      return sum == 0 || whole == 0 ? std::sqrt(sum) : std::sqrt(sum / whole);
    };
    return {root(top), rows, root(allowed)};
  }
};

/// What one unit of the terms of a result may be off by.
double unit_of(DType type, Pass pass) {
  return kernels::rounding_factor(type, pass) * kernels::unit_roundoff(type);
}

/// Every copy of a row counts.
ResultError copies_error(const std::vector<Part>& parts, const kernels::OracleTensor& truth, DType type) {
  kernels::Deviation rows;
  Squares sum;
  const double unit = unit_of(type, Pass::forward);
  for (const Part& part : parts) {
    rows.merge(kernels::deviation(part.rows.view(), part.tokens, truth, type));
    const HostTensor values = part.rows.as(DType::fp64);
    const kernels::ConstView view = values.view();
    for (i64 b = 0; b < view.batch; ++b)
      for (i64 row = 0; row < view.rows; ++row)
        for (i64 head = view.heads.begin; head < view.heads.end; ++head) {
          const auto* x = reinterpret_cast<const double*>(view.at(b, row, head));
          const std::size_t at = truth.at(b, part.tokens[static_cast<std::size_t>(row)], head);
          const double *y = truth.values.data() + at, *terms = truth.terms.data() + at;
          for (i64 w = 0; w < view.width; ++w) sum.add(x[w], y[w], unit * terms[w]);
        }
  }
  return sum.error(rows);
}

ResultError sum_error(const std::vector<Part>& parts, const kernels::OracleTensor& truth, DType type,
                      double least) {
  const HostTensor total = assemble(parts, truth.rows, true);
  Squares sum;
  const auto* x = reinterpret_cast<const double*>(total.bytes().data());
  const double unit = unit_of(type, Pass::backward);
  for (std::size_t i = 0; i < truth.values.size(); ++i) sum.add(x[i], truth.values[i], unit * truth.terms[i]);
  return sum.error(kernels::deviation(total.view(), truth, type), least);
}

double mean_square(const kernels::OracleTensor& truth) {
  Squares sum;
  for (const double x : truth.values) sum.add(x, x, 0);
  return sum.count == 0 ? 0 : sum.bottom / static_cast<double>(sum.count);
}

/// A gradient that vanishes, as that of the scores where every row sees one key, is rounding alone: it is
/// held against a quarter of the greatest gradient's RMS.
double min_mean_square(const kernels::Oracle& truth) {
  return std::max({mean_square(truth.dq), mean_square(truth.dk), mean_square(truth.dv)}) / 16;
}

/// Results would be NaN, and the run blamed for it.
void check_finite(const HostTensor& tensor, const char* name) {
  const HostTensor values = tensor.as(DType::fp64);
  const kernels::ConstView view = values.view();
  for (i64 b = 0; b < view.batch; ++b)
    for (i64 row = 0; row < view.rows; ++row)
      for (i64 head = view.heads.begin; head < view.heads.end; ++head)
        for (i64 w = 0; w < view.width; ++w) {
          const double x = reinterpret_cast<const double*>(view.at(b, row, head))[w];
          if (std::isfinite(x)) continue;
          throw InvalidInput({name, 0, fmt::format("batch {}, token {}, head {}", b, row, head)},
                             fmt::format("holds {}; attention needs finite numbers, mend the tensor",
                                         std::isnan(x) ? "nan" : "inf"));
        }
}

using Named = std::pair<const char*, const std::optional<ResultError>&>;

std::vector<Named> results_of(const CallErrors& e) {
  return {{"out", e.out}, {"lse", e.lse}, {"dq", e.dq}, {"dk", e.dk}, {"dv", e.dv}, {"d_sink", e.d_sink}};
}

}  // namespace

kernels::Oracle dense_attention(const AttentionPlan& plan, const Documents& documents,
                                const CallTensors& tensors, bool training, WorkProgress* progress) {
  check_finite(tensors.q, "q");
  check_finite(tensors.k, "k");
  check_finite(tensors.v, "v");
  if (training) check_finite(tensors.d_out, "d_out");
  const AttentionShape& s = plan.shape;
  const std::vector<schedule::Slice> slices = document_slices(plan.band, documents);
  const kernels::BlockMask blocks = block_mask(plan, documents, tensors);
  const AttentionInputs inputs = per_head_inputs(plan, tensors, blocks);
  const kernels::ScoreTerms terms = score_terms(plan, inputs);
  kernels::OracleCall call{tensors.q.view(), tensors.k.view(), tensors.v.view(), {}, {}};
  if (training) call.d_o = tensors.d_out.view();
  call.scope.group = s.query_heads / s.kv_heads;
  call.scope.slices = slices.data();
  call.scope.slice_count = static_cast<i64>(slices.size());
  call.scope.terms = &terms;
  call.sink = plan.sink ? tensors.sink.data() : nullptr;
  call.grad_rows = documents.cu_k.back();
  call.rounds = s.dtype;
  const auto total = static_cast<i64>(visible_pairs(plan, documents));
  std::atomic<i64> computed{0};
  const auto told = [&] { tell(progress, computed, total, "scores in fp64"); };
  kernels::Oracle oracle = kernels::empty_oracle(call);
  told();
  on_all_cores(
      s.kv_heads,
      [&](int kv_head) {  // gradients of a KV head are one core's
        kernels::OracleCall part = call;
        part.scope.query_heads = {i64{kv_head} * call.scope.group, (i64{kv_head} + 1) * call.scope.group};
        kernels::add_heads(part, oracle, [&](i64 pairs) { computed += pairs; });
      },
      told);
  told();
  return oracle;
}

DenseEffort dense_effort(const AttentionPlan& plan, const Documents& documents, bool training) {
  const AttentionShape& s = plan.shape;
  const unsigned cores = all_cores();
  const double scores = visible_pairs(plan, documents);
  const double rounds = std::ceil(s.kv_heads / static_cast<double>(cores));  // a KV head is one core's
  const double products = training ? 6 : 2;                                  // of each width
  const double score_s = score_base_s + products * (s.head_dim_qk + s.head_dim_v) * product_s;
  return {scores, scores / s.kv_heads * rounds * score_s, static_cast<int>(cores)};
}

CallErrors errors_of(const RunResult& run, const kernels::Oracle& truth, DType dtype) {
  CallErrors errors;
  errors.dtype = dtype;
  errors.out = copies_error(run.out, truth.out, dtype);
  errors.lse = copies_error(run.lse, truth.lse, accumulator_of(dtype));
  if (!run.training) return errors;
  const double least = min_mean_square(truth);
  errors.dq = sum_error(run.dq, truth.dq, dtype, least);
  errors.dk = sum_error(run.dk, truth.dk, dtype, least);
  errors.dv = sum_error(run.dv, truth.dv, dtype, least);
  if (truth.d_sink.empty()) return errors;
  Squares sink;
  const double unit = unit_of(dtype, Pass::backward);
  for (std::size_t h = 0; h < truth.d_sink.size(); ++h)
    sink.add(run.d_sink[h], truth.d_sink[h], unit * truth.d_sink_terms[h]);
  errors.d_sink = sink.error(kernels::deviation(run.d_sink, truth.d_sink, truth.d_sink_terms, dtype));
  return errors;
}

bool CallErrors::verifiable() const {
  for (const auto& [name, error] : results_of(*this))
    if (error && error->rows.overflow) return false;
  return true;
}

Tolerance tolerance_of(DType dtype) {
  if (dtype == DType::fp64) return {1e-10, 1e-10};
  if (dtype == DType::fp32) return {1e-5, 1e-5};
  return {1e-2, 2e-2};
}

double whole_bound(const ResultError& error, const Tolerance& tolerance, Pass pass) {
  const double bound = pass == Pass::forward ? tolerance.output : tolerance.gradient;
  return tolerance.strict ? bound : std::max(bound, error.allowed);
}

std::string exceeded(const CallErrors& errors, const Tolerance& tolerance) {
  std::string text;
  const auto add = [&](const std::string& words) {
    if (!words.empty()) text += (text.empty() ? "" : ", ") + words;
  };
  for (const auto& [name, error] : results_of(errors)) {
    if (!error) continue;
    const std::string_view result = name;
    const Pass pass = result == "out" || result == "lse" ? Pass::forward : Pass::backward;
    const double bound = whole_bound(*error, tolerance, pass);
    // Without a bound for some of its elements a whole tensor has none.
    if (!error->rows.overflow && !(error->whole <= bound))
      add(fmt::format("{} is off by {:.3g} (bound {:.3g})", name, error->whole, bound));
    add(kernels::fault(name, error->rows, result == "lse" ? accumulator_of(errors.dtype) : errors.dtype,
                       pass));
  }
  return text;
}

}  // namespace usp
