// SPDX-License-Identifier: Apache-2.0
// The schedule of every generator, executed literally in fp64, equals dense attention: o, lse and all
// gradients.
#include "interpreter.hpp"
#include "schedule_cases.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

Array noise(CaseGenerator& g, i64 b, i64 r, i64 h, i64 w) {
  Array a(b, r, h, w, 0);
  std::normal_distribution<double> normal;
  for (double& x : a.data) x = normal(g.engine());
  return a;
}

/// Largest difference, relative to 1 + the largest reference value; NaN counts as infinitely wrong.
double difference(double a, double reference) {
  if (std::isinf(reference) && a == reference) return 0;
  const double d = std::abs(a - reference) / (1 + std::abs(reference));
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

double worst(const RankState& rank, Tensor tensor, Place place, const Array& reference) {
  const Buffer& b = rank.result_buffer(tensor, place);
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

double worst_sum(const std::vector<RankState>& ranks, Tensor tensor, const Array& reference) {
  Array sum(reference.batch, reference.rows, reference.heads, reference.width, 0);
  for (const RankState& rank : ranks) {
    const Array& a = rank.result(tensor, Place::home);
    const std::vector<i64> ids = rank.tokens(rank.result_buffer(tensor, Place::home));
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

void check(const ScheduleCase& c, CaseGenerator& g) {
  const AttentionShape& s = c.plan.shape;
  const Geometry geometry(c.plan, c.documents);
  CompactSchedule compact;
  generate(c.plan, geometry.heads().shared_kv(), compact);
  Problem problem{noise(g, s.batch, s.q_tokens, s.query_heads, s.head_dim_qk),
                  noise(g, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_qk),
                  noise(g, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_v),
                  {},
                  0.7};
  for (int h = 0; h < s.query_heads; ++h) problem.sink.push_back(0.3 * h - 0.5);
  std::vector<RankState> ranks;
  for (int p = 0; p < c.plan.mesh.size(); ++p) ranks.emplace_back(geometry, compact, p);
  std::vector<Array> d_o(ranks.size());
  run_pass(ranks, Pass::forward, problem, d_o);
  // Every copy of a replicated token has a dO of its own; the truth is their sum.
  Array d_o_global(s.batch, s.q_tokens, s.query_heads, s.head_dim_v, 0);
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    const std::vector<i64> ids = ranks[p].tokens(ranks[p].result_buffer(Tensor::o, Place::home));
    d_o[p] = noise(g, s.batch, static_cast<i64>(ids.size()), s.query_heads, s.head_dim_v);
    for (i64 x = 0; x < s.batch; ++x)
      for (i64 r = 0; r < d_o[p].rows; ++r)
        for (i64 h = 0; h < s.query_heads; ++h)
          for (i64 w = 0; w < s.head_dim_v; ++w)
            d_o_global.at(x, ids[static_cast<std::size_t>(r)], h, w) += d_o[p].at(x, r, h, w);
  }
  const Dense truth = dense(c.plan, c.documents, problem, d_o_global);
  for (const RankState& rank : ranks) {
    ASSERT_LT(worst(rank, Tensor::o, Place::home, truth.o), 1e-10) << "o, " << describe(c);
    ASSERT_LT(worst(rank, Tensor::lse, Place::row, truth.lse), 1e-10) << "lse, " << describe(c);
  }
  run_pass(ranks, Pass::backward, problem, d_o);
  ASSERT_LT(worst_sum(ranks, Tensor::dq, truth.dq), 1e-10) << "dq, " << describe(c);
  ASSERT_LT(worst_sum(ranks, Tensor::dk, truth.dk), 1e-10) << "dk, " << describe(c);
  ASSERT_LT(worst_sum(ranks, Tensor::dv, truth.dv), 1e-10) << "dv, " << describe(c);
  for (std::size_t h = 0; c.plan.sink && h < truth.d_sink.size(); ++h) {
    double sum = 0;
    for (const RankState& rank : ranks) sum += rank.d_sink[h];
    ASSERT_LT(difference(sum, truth.d_sink[h]), 1e-10) << "dsink, " << describe(c);
  }
}

TEST(ScheduleNumerics, RandomCasesEqualDenseAttention) {
  CaseGenerator g(20261127);
  for (int i = 0; i < 1500; ++i) {
    const ScheduleCase c = g.draw();
    ASSERT_NO_THROW(check(c, g)) << describe(c);
    if (HasFatalFailure()) return;
  }
}

TEST(ScheduleNumerics, EveryMeshOfUpToTwelveRanks) {
  CaseGenerator g(7);
  for (int ranks = 1; ranks <= 12; ++ranks)
    for (int i = 0; i < 12; ++i) {
      const ScheduleCase c = g.draw(ranks);
      ASSERT_NO_THROW(check(c, g)) << describe(c);
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace usp::test
