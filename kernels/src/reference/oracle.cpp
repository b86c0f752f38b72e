// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/oracle.hpp"

#include "../visible_keys.hpp"
#include "pairs.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace usp::kernels {
namespace {

using reference::dot;
using reference::dot_terms;
using reference::Doubles;
using reference::Logit;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// c * u of what is rounded to the call's type and of what is carried in its accumulator.
struct Units {
  Units(DType type, Pass pass)
      : rounded(rounding_factor(type, pass) * unit_roundoff(type)),
        carried(rounding_factor(accumulator_of(type), pass) * unit_roundoff(accumulator_of(type))),
        share(carried / rounded) {}
  double rounded, carried;
  double share;  ///< a carried term, in units of a rounded one

  /// What exp(x) may be off by where x may be off by so many carried units: all of it where that is much.
  [[nodiscard]] double error_of_exp(double x, double x_terms) const {
    const double e = carried * x_terms;
    const double off = e < 1e-3 ? std::exp(x) * e * (1 + e) : std::exp(x + e) - std::exp(x);
    return off / rounded;
  }
};

/// A visible key of one query row.
struct Pair {
  i64 k_row = 0, grad_row = 0;
  Logit logit;
  double logit_terms = 0;
  double p = 0;
  double dp = 0, dp_terms = 0;  ///< dO . V, and what it may be off by
};

/// Results and terms of one row and head at a time, from all its logits at once.
class Rows {
 public:
  Rows(const OracleCall& call, Oracle& oracle)
      : call_(call),
        oracle_(oracle),
        scope_(call.scope),
        pairs_(call.q, call.k, scope_),
        v_(call.v, reference::key_rows(scope_), scope_.kv_heads()),
        smallest_(smallest_normal(call.rounds)),
        flushed_(smallest_normal(accumulator_of(call.rounds)) / unit_roundoff(call.rounds)),
        scale_(std::abs(call.scope.terms->scale)),
        max_sum_(max_finite(accumulator_of(call.rounds))),
        slices_of_(static_cast<std::size_t>(call.q.rows)) {
    if (call.d_o.data != nullptr) d_o_.emplace(call.d_o, reference::query_rows(scope_), scope_.query_heads);
    for (const schedule::Slice* s = scope_.slices; s != scope_.slices + scope_.slice_count; ++s)
      for (i64 i = 0; i < s->q_count; ++i) slices_of_[static_cast<std::size_t>(s->q_row + i)].push_back(s);
  }

  /// The number of pairs within the band.
  i64 compute(i64 b, i64 head, i64 row) {
    head_ = head, kv_ = head / scope_.group;
    const i64 pairs = collect(b, row);
    if (keys_.empty() && call_.sink == nullptr) return pairs;
    forward(b, row);
    if (d_o_) backward(b, row);
    return pairs;
  }

 private:
  /// The visible keys of a row, over all slices; the number of those within the band.
  i64 collect(i64 b, i64 row) {
    keys_.clear();
    i64 pairs = 0;
    for (const schedule::Slice* s : slices_of_[static_cast<std::size_t>(row)]) {
      const i64 i = row - s->q_row;
      const Range keys = visible_keys(*s, i);
      pairs += keys.size();
      for (i64 j = keys.begin; j < keys.end; ++j) {
        Pair key{s->k_row + j, s->dk_row + j, pairs_.logit(*s, b, head_, i, j)};
        if (!key.logit.visible) continue;
        const double products = pairs_.product_terms(*s, b, head_, i, j);
        key.logit_terms = products <= max_sum_ ? scale_ * products + pairs_.terms().softcap +
                                                     std::abs(key.logit.bias) + std::abs(key.logit.value)
                                               : infinity;
        keys_.push_back(key);
      }
    }
    return pairs;
  }

  void forward(i64 b, i64 row) {
    double top = call_.sink != nullptr ? call_.sink[head_] : -infinity, sum = 0;
    for (const Pair& key : keys_) top = std::max(top, key.logit.value);
    for (const Pair& key : keys_) sum += std::exp(key.logit.value - top);
    if (call_.sink != nullptr) sum += std::exp(call_.sink[head_] - top);
    lse_ = top + std::log(sum);
    lse_terms_ = 1 + std::abs(lse_);
    for (Pair& key : keys_) {
      key.p = std::exp(key.logit.value - lse_);
      lse_terms_ += key.p * key.logit_terms;
    }
    if (call_.sink != nullptr) lse_terms_ += std::exp(call_.sink[head_] - lse_) * std::abs(call_.sink[head_]);
    oracle_.lse.values[oracle_.lse.at(b, row, head_)] = lse_;
    oracle_.lse.terms[oracle_.lse.at(b, row, head_)] = lse_terms_;
    const Units units(call_.rounds, Pass::forward);
    OracleTensor& out = oracle_.out;
    double* o = out.values.data() + out.at(b, row, head_);
    double* terms = out.terms.data() + out.at(b, row, head_);
    for (const Pair& key : keys_) {
      if (key.logit.keep == 0) continue;
      const double p = key.logit.keep * key.p, p_terms = key.logit.keep * terms_of_p(key, units);
      const double* v = v_.row(b, key.k_row, kv_);
      for (i64 w = 0; w < out.width; ++w) {
        o[w] += p * v[w];
        terms[w] += p_terms * std::abs(v[w]);
      }
    }
  }

  /// The rounding of a probability before it is multiplied, all of it where it underflows, and what its
  /// logit's roundings make of it.
  [[nodiscard]] double terms_of_p(const Pair& key, const Units& units) const {
    return std::max(key.p, smallest_) + flushed_ + error_of_p(key, units);
  }
  [[nodiscard]] double error_of_p(const Pair& key, const Units& units) const {
    return units.error_of_exp(key.logit.value - lse_, 1 + key.logit_terms + lse_terms_);
  }

  void backward(i64 b, i64 row) {
    const Units units(call_.rounds, Pass::backward);
    const double* d_o = d_o_->row(b, row, head_);
    const double* o = oracle_.out.values.data() + oracle_.out.at(b, row, head_);
    const double delta = dot(d_o, o, oracle_.out.width);
    // delta is a sum over dO * O of a rounded O, whose P were rounded: sum over P of (dO . V). Either may
    // underflow.
    const double d_o_roundings = call_.rounds_d_o ? 1 : 0;
    double delta_terms = (1 + d_o_roundings) * dot_terms(d_o, o, oracle_.out.width), products = 0;
    for (i64 w = 0; w < oracle_.out.width; ++w) delta_terms += smallest_ * std::abs(d_o[w]);
    for (Pair& key : keys_) {
      const double* v = v_.row(b, key.k_row, kv_);
      key.dp = key.logit.keep * dot(d_o, v, oracle_.out.width);
      key.dp_terms = key.logit.keep * dot_terms(d_o, v, oracle_.out.width);
      if (!(key.dp_terms <= max_sum_)) key.dp_terms = infinity;
      delta_terms += terms_of_p(key, units) * std::abs(key.dp);
      key.dp_terms *= units.share + d_o_roundings;
      products += key.p * key.dp_terms;
    }
    delta_terms += products;
    oracle_.delta.values[oracle_.delta.at(b, row, head_)] = delta;
    oracle_.delta.terms[oracle_.delta.at(b, row, head_)] = delta_terms;
    if (call_.sink != nullptr) sink_gradient(delta, delta_terms, units);
    for (const Pair& key : keys_) gradient(b, row, key, {delta, delta_terms}, units);
  }

  struct DeltaOf {
    double value, terms;
  };

  void sink_gradient(double delta, double delta_terms, const Units& units) {
    const double sink = call_.sink[head_], p = std::exp(sink - lse_);
    oracle_.d_sink[static_cast<std::size_t>(head_)] -= p * delta;
    oracle_.d_sink_terms[static_cast<std::size_t>(head_)] +=
        p * (delta_terms + units.share * std::abs(delta) * (1 + std::abs(sink) + lse_terms_)) +
        flushed_ * std::abs(delta);
  }

  void gradient(i64 b, i64 row, const Pair& key, const DeltaOf& delta, const Units& units) {
    const ScoreTerms& rules = pairs_.terms();
    const double difference = std::abs(key.dp - delta.value), rounded = key.p * key.logit.slope * difference;
    double ds_terms = key.logit.slope * (key.p * (difference + delta.terms + key.dp_terms) +
                                         (flushed_ + error_of_p(key, units)) * difference);
    if (rules.softcap != 0)  // 1 - tanh^2 cancels
      ds_terms += units.share * key.p * difference * (4 + 2 * key.logit_terms / rules.softcap);
    // dS is rounded, or flushed in the accumulator, before it is scaled or after.
    const double underflow = std::max(scale_, 1.0) * (smallest_ + flushed_);
    ds_terms = rounded <= max_finite(call_.rounds) ? scale_ * ds_terms + underflow : infinity;
    const double ds = key.p * (key.dp - delta.value) * key.logit.slope * rules.scale;
    const double p = key.logit.keep * key.p,
                 p_terms = key.logit.keep * (terms_of_p(key, units) + (call_.rounds_d_o ? key.p : 0));
    add(oracle_.dq, oracle_.dq.at(b, row, head_), ds, ds_terms, pairs_.k(b, key.k_row, kv_));
    add(oracle_.dk, oracle_.dk.at(b, key.grad_row, kv_), ds, ds_terms, pairs_.q(b, row, head_));
    if (p_terms != 0)
      add(oracle_.dv, oracle_.dv.at(b, key.grad_row, kv_), p, p_terms, d_o_->row(b, row, head_));
  }

  static void add(OracleTensor& to, std::size_t at, double weight, double weight_terms,
                  const double* vector) {
    double *values = to.values.data() + at, *terms = to.terms.data() + at;
    for (i64 w = 0; w < to.width; ++w) {
      values[w] += weight * vector[w];
      terms[w] += weight_terms * std::abs(vector[w]);
    }
  }

  const OracleCall& call_;
  Oracle& oracle_;
  const AttendScope& scope_;
  reference::Pairs pairs_;
  Doubles v_;
  std::optional<Doubles> d_o_;
  double smallest_;
  double flushed_;  ///< a number of the accumulator that underflows to 0, in units of a rounded term
  double scale_;    ///< magnitude
  double max_sum_;
  std::vector<std::vector<const schedule::Slice*>> slices_of_;
  i64 head_ = 0, kv_ = 0;
  std::vector<Pair> keys_;
  double lse_ = 0, lse_terms_ = 0;
};

/// A result is itself rounded: one below the normal numbers by as much as the smallest of them. One that the
/// type does not hold, or whose terms it cannot add up, has no bound.
void finish(OracleTensor& tensor, Range heads, DType type) {
  const double greatest = max_finite(type), max_sum = max_finite(accumulator_of(type));
  for (i64 b = 0; b < tensor.batch; ++b)
    for (i64 row = 0; row < tensor.rows; ++row)
      for (i64 head = heads.begin; head < heads.end; ++head)
        for (std::size_t i = tensor.at(b, row, head);
             i < tensor.at(b, row, head) + static_cast<std::size_t>(tensor.width); ++i) {
          if (tensor.terms[i] == 0) continue;
          tensor.terms[i] += smallest_normal(type);
          if (!(tensor.terms[i] <= max_sum && std::abs(tensor.values[i]) <= greatest))
            tensor.terms[i] = infinity;
        }
}

}  // namespace

OracleTensor::OracleTensor(i64 batch_count, i64 row_count, Range head_range, i64 row_width)
    : batch(batch_count),
      rows(row_count),
      heads(head_range),
      width(row_width),
      values(static_cast<std::size_t>(batch_count * row_count * head_range.size() * row_width)),
      terms(values.size()) {}

Oracle empty_oracle(const OracleCall& call) {
  const Range heads = call.q.heads;
  Oracle oracle;
  oracle.out = OracleTensor(call.q.batch, call.q.rows, heads, call.v.width);
  oracle.lse = OracleTensor(call.q.batch, call.q.rows, heads, 1);
  oracle.lse.values.assign(oracle.lse.values.size(), -infinity);
  if (call.d_o.data == nullptr) return oracle;
  oracle.delta = OracleTensor(call.q.batch, call.q.rows, heads, 1);
  oracle.dq = OracleTensor(call.q.batch, call.q.rows, heads, call.q.width);
  oracle.dk = OracleTensor(call.q.batch, call.grad_rows, call.k.heads, call.q.width);
  oracle.dv = OracleTensor(call.q.batch, call.grad_rows, call.k.heads, call.v.width);
  if (call.sink == nullptr) return oracle;
  oracle.d_sink.assign(static_cast<std::size_t>(heads.end), 0);
  oracle.d_sink_terms = oracle.d_sink;
  return oracle;
}

void add_heads(const OracleCall& call, Oracle& oracle, const std::function<void(i64)>& computed) {
  const AttendScope& scope = call.scope;
  if (scope.query_heads.empty()) return;
  Rows rows(call, oracle);
  for (i64 b = 0; b < call.q.batch; ++b)
    for (i64 head = scope.query_heads.begin; head < scope.query_heads.end; ++head)
      for (i64 row = 0; row < call.q.rows; ++row) {
        const i64 pairs = rows.compute(b, head, row);
        if (computed) computed(pairs);
      }
  finish(oracle.out, scope.query_heads, call.rounds);
  finish(oracle.lse, scope.query_heads, accumulator_of(call.rounds));
  if (call.d_o.data == nullptr) return;
  finish(oracle.delta, scope.query_heads, accumulator_of(call.rounds));
  finish(oracle.dq, scope.query_heads, call.rounds);
  finish(oracle.dk, scope.kv_heads(), call.rounds);
  finish(oracle.dv, scope.kv_heads(), call.rounds);
}

Oracle attention_oracle(const OracleCall& call) {
  Oracle oracle = empty_oracle(call);
  add_heads(call, oracle);
  return oracle;
}

}  // namespace usp::kernels
