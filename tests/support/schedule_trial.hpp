// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter.hpp"
#include "schedule_cases.hpp"

#include <random>

/// Runs one problem with random numbers through the interpreter and compares it with dense attention.
namespace usp::test {

inline Array noise(std::mt19937_64& random, i64 b, i64 r, i64 h, i64 w) {
  Array a(b, r, h, w, 0);
  std::normal_distribution<double> normal;
  for (double& x : a.data) x = normal(random);
  return a;
}

/// Largest difference, relative to 1 + the largest reference value; NaN counts as infinitely wrong.
inline double difference(double a, double reference) {
  if (std::isinf(reference) && a == reference) return 0;
  const double d = std::abs(a - reference) / (1 + std::abs(reference));
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

inline double worst(const RankState& rank, Tensor tensor, BufferSlot place, const Array& reference) {
  const schedule::Buffer& b = rank.result_buffer(tensor, place);
  const Array& a = rank.result(tensor, place);
  const std::vector<i64> ids = rank.tokens(b);
  double most = 0;
  for (i64 x = 0; x < a.batch; ++x)
    for (i64 r = 0; r < a.rows; ++r)
      for (i64 h = 0; h < a.heads; ++h)
        for (i64 w = 0; w < a.width; ++w)
          most = std::max(most, difference(a.at(x, r, h, w), reference.at(x, ids[static_cast<std::size_t>(r)],
                                                                          h + b.heads.begin, w)));
  return most;
}

inline double worst_sum(const std::vector<RankState>& ranks, Tensor tensor, const Array& reference) {
  Array sum(reference.batch, reference.rows, reference.heads, reference.width, 0);
  for (const RankState& rank : ranks) {
    const Array& a = rank.result(tensor, BufferSlot::home);
    const std::vector<i64> ids = rank.tokens(rank.result_buffer(tensor, BufferSlot::home));
    for (i64 x = 0; x < a.batch; ++x)
      for (i64 r = 0; r < a.rows; ++r)
        for (i64 h = 0; h < a.heads; ++h)
          for (i64 w = 0; w < a.width; ++w)
            sum.at(x, ids[static_cast<std::size_t>(r)], h, w) += a.at(x, r, h, w);
  }
  double most = 0;
  for (std::size_t i = 0; i < sum.data.size(); ++i)
    most = std::max(most, difference(sum.data[i], reference.data[i]));
  return most;
}

/// Largest relative errors against dense attention, forward and backward.
struct Errors {
  double o = 0, lse = 0, dq = 0, dk = 0, dv = 0, d_sink = 0;
  [[nodiscard]] double worst() const { return std::max({o, lse, dq, dk, dv, d_sink}); }
};

/// One problem, ready to run: expanded schedules, inputs, and the truth.
class Trial {
 public:
  Trial(const ScheduleCase& c, std::uint64_t seed) : Trial(c, c.plan, seed) {}
  /// @param executed  the plan that the ranks follow; the truth is that of c
  Trial(const ScheduleCase& c, const AttentionPlan& executed, std::uint64_t seed)
      : case_(c), geometry_(executed, c.documents), random_(seed) {
    const AttentionShape& s = c.plan.shape;
    schedule::generate(executed, geometry_.heads().shared_kv(), compact_);
    problem_ = {noise(random_, s.batch, s.q_tokens, s.query_heads, s.head_dim_qk),
                noise(random_, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_qk),
                noise(random_, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_v),
                {},
                0.7};
    for (int h = 0; h < s.query_heads; ++h) problem_.sink.push_back(0.3 * h - 0.5);
    for (int p = 0; p < c.plan.mesh.size(); ++p) ranks_.emplace_back(geometry_, compact_, p);
    draw_d_o();
  }

  [[nodiscard]] const std::vector<RankState>& ranks() const { return ranks_; }

  /// Runs both passes; may run again. Throws what the interpreter notices.
  [[nodiscard]] Errors run(const Courier& forward = {}, const Courier& backward = {}) {
    Errors e;
    for (RankState& rank : ranks_) rank.d_sink.clear();
    run_pass(ranks_, Pass::forward, problem_, d_o_, forward);
    for (const RankState& rank : ranks_) {
      e.o = std::max(e.o, worst(rank, Tensor::o, BufferSlot::home, truth_.o));
      e.lse = std::max(e.lse, worst(rank, Tensor::lse, BufferSlot::row, truth_.lse));
      if (case_.plan.return_lse)
        e.lse = std::max(e.lse, worst(rank, Tensor::lse, BufferSlot::home, truth_.lse));
    }
    run_pass(ranks_, Pass::backward, problem_, d_o_, backward);
    e.dq = worst_sum(ranks_, Tensor::dq, truth_.dq);
    e.dk = worst_sum(ranks_, Tensor::dk, truth_.dk);
    e.dv = worst_sum(ranks_, Tensor::dv, truth_.dv);
    for (std::size_t h = 0; case_.plan.sink && h < truth_.d_sink.size(); ++h) {
      double sum = 0;
      for (const RankState& rank : ranks_) sum += rank.d_sink[h];
      e.d_sink = std::max(e.d_sink, difference(sum, truth_.d_sink[h]));
    }
    return e;
  }

 private:
  /// Every copy of a replicated token has a dO of its own; the truth is their sum.
  void draw_d_o() {
    const AttentionShape& s = case_.plan.shape;
    Array global(s.batch, s.q_tokens, s.query_heads, s.head_dim_v, 0);
    for (const RankState& rank : ranks_) {
      const std::vector<i64> ids = rank.tokens(rank.result_buffer(Tensor::o, BufferSlot::home));
      d_o_.push_back(noise(random_, s.batch, static_cast<i64>(ids.size()), s.query_heads, s.head_dim_v));
      for (i64 x = 0; x < s.batch; ++x)
        for (i64 r = 0; r < d_o_.back().rows; ++r)
          for (i64 h = 0; h < s.query_heads; ++h)
            for (i64 w = 0; w < s.head_dim_v; ++w)
              global.at(x, ids[static_cast<std::size_t>(r)], h, w) += d_o_.back().at(x, r, h, w);
    }
    truth_ = dense(case_.plan, case_.documents, problem_, global);
  }

  const ScheduleCase& case_;
  schedule::TokenMap geometry_;
  schedule::CompactSchedule compact_;
  std::mt19937_64 random_;
  Problem problem_;
  std::vector<RankState> ranks_;
  std::vector<Array> d_o_;
  Dense truth_;
};

}  // namespace usp::test
