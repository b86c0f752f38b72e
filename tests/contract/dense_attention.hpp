// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"

/// Dense softmax attention written from the formulas alone, to check the reference backend: the whole row of
/// logits at once, gradients by the chain rule through explicit matrices.
namespace usp::test {

class Dense {
 public:
  explicit Dense(const Case& problem, const Inputs& inputs)
      : c(problem),
        terms(problem),
        q(inputs.q.values()),
        k(inputs.k.values()),
        v(inputs.v.values()),
        d_o(inputs.d_o.values()) {
    out.o.assign(q.size() / width(c.dqk) * width(c.dv), 0);
    out.lse.assign(q.size() / width(c.dqk), -std::numeric_limits<double>::infinity());
    out.delta.assign(out.lse.size(), 0);
    out.dq.assign(q.size(), 0);
    out.dk.assign(width(c.grad_rows() * c.batch * c.kv_heads().size() * c.dqk), 0);
    out.dv.assign(width(c.grad_rows() * c.batch * c.kv_heads().size() * c.dv), 0);
    out.d_sink.assign(width(c.query_heads.end), 0);
    for (i64 b = 0; b < c.batch; ++b)
      for (i64 h = c.query_heads.begin; h < c.query_heads.end; ++h)
        for (i64 r = 0; r < c.q_rows; ++r) row(b, h, r);
  }
  Results out;

 private:
  struct Key {
    i64 row, grad_row;
    double logit, before_cap, keep;
  };
  static std::size_t width(i64 n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t q_at(i64 b, i64 h, i64 r) const {
    return width((r * c.batch + b) * c.query_heads.size() + h - c.query_heads.begin);
  }
  [[nodiscard]] std::size_t k_at(i64 b, i64 h, i64 r) const {
    return width((r * c.batch + b) * c.kv_heads().size() + h / c.group - c.kv_heads().begin);
  }

  [[nodiscard]] std::vector<Key> keys(i64 b, i64 h, i64 r) const {
    std::vector<Key> found;
    for (const schedule::Slice& s : c.slices)
      for (i64 j = 0; j < s.k_count; ++j) {
        if (r < s.q_row || r >= s.q_row + s.q_count) continue;
        const i64 x = s.q_pos + (r - s.q_row) * s.q_step, y = s.k_pos + j * s.k_step;
        if (x - y < s.diff_min || x - y > s.diff_max) continue;
        if (terms.terms.blocks != nullptr &&
            terms.admitted[width((h * c.blocks.rows + x / c.blocks.block_q) * c.blocks.columns +
                                 y / c.blocks.block_k)] == 0)
          continue;
        found.push_back(key(b, h, r, s.k_row + j, {b, h, x, y}));
        found.back().grad_row = s.dk_row + j;
      }
    return found;
  }

  [[nodiscard]] Key key(i64 b, i64 h, i64 r, i64 k_row, kernels::PairKey pair) const {
    double z = 0;
    for (std::size_t w = 0; w < width(c.dqk); ++w)
      z += q[q_at(b, h, r) * width(c.dqk) + w] * k[k_at(b, h, k_row) * width(c.dqk) + w];
    z /= std::sqrt(static_cast<double>(c.dqk));
    double logit = c.softcap == 0 ? z : c.softcap * std::tanh(z / c.softcap);
    if (c.alibi)
      logit -=
          std::exp2(-static_cast<double>(h + 1)) * std::abs(static_cast<double>(pair.q_pos - pair.k_pos));
    const double uniform = kernels::dropout_bits(terms.terms.dropout_seed, pair) / 4294967296.0;
    return {k_row, 0, logit, z, c.dropout == 0 ? 1 : uniform < c.dropout ? 0 : 1 / (1 - c.dropout)};
  }

  void row(i64 b, i64 h, i64 r) {
    const std::vector<Key> seen = keys(b, h, r);
    const std::size_t at = q_at(b, h, r);
    const double sink = terms.sinks[width(h)];
    double total = c.sink ? std::exp(sink) : 0;
    for (const Key& x : seen) total += std::exp(x.logit);
    if (total == 0) return;
    out.lse[at] = std::log(total);
    for (const Key& x : seen)
      for (std::size_t w = 0; w < width(c.dv); ++w)
        out.o[at * width(c.dv) + w] +=
            std::exp(x.logit) / total * x.keep * v[k_at(b, h, x.row) * width(c.dv) + w];
    for (std::size_t w = 0; w < width(c.dv); ++w)
      out.delta[at] += out.o[at * width(c.dv) + w] * d_o[at * width(c.dv) + w];
    if (c.sink) out.d_sink[width(h)] -= std::exp(sink) / total * out.delta[at];
    for (const Key& x : seen) gradient(b, h, at, x, std::exp(x.logit) / total);
  }

  void gradient(i64 b, i64 h, std::size_t at, const Key& x, double p) {
    const std::size_t from = k_at(b, h, x.row), to = k_at(b, h, x.grad_row);
    double d_p = 0;
    for (std::size_t w = 0; w < width(c.dv); ++w) {
      d_p += d_o[at * width(c.dv) + w] * x.keep * v[from * width(c.dv) + w];
      out.dv[to * width(c.dv) + w] += p * x.keep * d_o[at * width(c.dv) + w];
    }
    const double cosh = c.softcap == 0 ? 1 : std::cosh(x.before_cap / c.softcap);
    const double d_z = p * (d_p - out.delta[at]) / (cosh * cosh) / std::sqrt(static_cast<double>(c.dqk));
    for (std::size_t w = 0; w < width(c.dqk); ++w) {
      out.dq[at * width(c.dqk) + w] += d_z * k[from * width(c.dqk) + w];
      out.dk[to * width(c.dqk) + w] += d_z * q[at * width(c.dqk) + w];
    }
  }

  const Case& c;
  Terms terms;
  std::vector<double> q, k, v, d_o;
};

}  // namespace usp::test
