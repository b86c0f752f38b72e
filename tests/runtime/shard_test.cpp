// SPDX-License-Identifier: Apache-2.0
// Cutting a step's data by the layout of a mesh: over all ranks nothing is lost, doubled or moved.
#include "usp/runtime/shard.hpp"

#include "expect_refused.hpp"

#include "usp/kernels/typed_view.hpp"
#include "usp/runtime/prepared.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace usp::test {
namespace {

using kernels::view_of;

constexpr LayoutKind layouts[] = {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped,
                                  LayoutKind::balanced};
constexpr Mesh meshes[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 3}, {1, 3, 2}, {2, 2, 2}};

/// Borders of three documents, the middle one empty, in `tokens` tokens.
std::vector<i64> borders(i64 tokens) {
  return {0, tokens / 3, tokens / 3, tokens};
}

/// Calls `visit` with the tokens of every rank of a case.
template <class Visit>
void for_each_rank(const Visit& visit) {
  for (const LayoutKind kind : layouts)
    for (const Mesh& mesh : meshes)
      for (const i64 tokens : {1, 7, 12, 61})
        for (int rank = 0; rank < mesh.size(); ++rank)
          visit(kind, mesh, tokens, rank, layout_tokens(kind, tokens, mesh, rank, borders(tokens)));
}

TEST(Shard, EveryTokenHasOneRank) {
  for (const LayoutKind kind : layouts)
    for (const Mesh& mesh : meshes)
      for (const i64 tokens : {1, 7, 12, 61}) {
        std::vector<i64> all;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          const std::vector<i64> own = layout_tokens(kind, tokens, mesh, rank, borders(tokens));
          EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
          all.insert(all.end(), own.begin(), own.end());
        }
        std::sort(all.begin(), all.end());
        std::vector<i64> expected(static_cast<std::size_t>(tokens));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(all, expected);
      }
}

/// The rows for which an executor takes tensors.
TEST(Shard, TokensAreThoseOfAPreparedCall) {
  for_each_rank([](LayoutKind kind, const Mesh& mesh, i64 tokens, int rank, const std::vector<i64>& own) {
    AttentionPlan plan;
    plan.mesh = mesh;
    plan.method = mesh.ring_outer > 1 ? Method::double_ring : Method::ring;
    plan.layout = kind;
    plan.shape = {.q_tokens = tokens,
                  .kv_tokens = tokens,
                  .query_heads = 4,
                  .kv_heads = 4,
                  .head_dim_qk = 8,
                  .head_dim_v = 8,
                  .dtype = DType::fp32};
    const Prepared prepared(plan, Documents::packed(borders(tokens)), rank);
    EXPECT_EQ(prepared.q_tokens(), own);
    EXPECT_EQ(prepared.kv_tokens(), own);
  });
}

TEST(Shard, PositionsAndLabelsAreThoseOfTheUncutStep) {
  for_each_rank([](LayoutKind, const Mesh&, i64 tokens, int, const std::vector<i64>& own) {
    std::vector<i64> positions, labels, next;
    const std::vector<i64> cu_seqlens = borders(tokens);
    for (i64 t = 0; t < tokens; ++t) labels.push_back(1000 + t);
    for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d)
      for (i64 t = cu_seqlens[d]; t < cu_seqlens[d + 1]; ++t) {
        positions.push_back(t - cu_seqlens[d]);
        next.push_back(t + 1 == cu_seqlens[d + 1] ? -1 : 1000 + t + 1);
      }
    const std::vector<i64> own_positions = positions_of(own, cu_seqlens);
    const std::vector<i64> own_labels = shifted_labels(labels, own, cu_seqlens, -1);
    ASSERT_EQ(own_positions.size(), own.size());
    ASSERT_EQ(own_labels.size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own_positions[i], positions[static_cast<std::size_t>(own[i])]);
      EXPECT_EQ(own_labels[i], next[static_cast<std::size_t>(own[i])]);
    }
  });
  EXPECT_EQ(shifted_labels({5}, {0}, {0, 1}), std::vector<i64>{-100});
}

/// Rows of the caller's strides: batch rows and heads interleave with others.
TEST(Shard, RowsComeBackToTheirPlaces) {
  constexpr i64 tokens = 12, batch = 2, heads = 3, width = 4;
  std::vector<float> all(tokens * batch * heads * width), back(all.size(), -1);
  std::iota(all.begin(), all.end(), 0.0f);
  const kernels::TensorStrides sequence_first{
      .batch = heads * width, .row = batch * heads * width, .head = width};
  const auto from = view_of(std::as_const(all).data(), {batch, tokens, heads, width}, sequence_first);
  const auto to = view_of(back.data(), {batch, tokens, heads, width}, sequence_first);
  const Mesh mesh{1, 2, 2};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<i64> own = layout_tokens(LayoutKind::zigzag, tokens, mesh, rank, {0, tokens});
    const auto rows = static_cast<i64>(own.size());
    std::vector<double> part(static_cast<std::size_t>(batch * rows * heads * width));
    gather_rows(from, own, view_of(part.data(), {batch, rows, heads, width}));
    for (std::size_t i = 0; i < own.size(); ++i)  // batch row 1, last head, last element
      EXPECT_EQ(part[((static_cast<std::size_t>(rows) + i) * heads + heads - 1) * width + width - 1],
                static_cast<double>(((own[i] * batch + 1) * heads + heads - 1) * width + width - 1));
    scatter_rows(view_of(std::as_const(part).data(), {batch, rows, heads, width}), own, to);
  }
  EXPECT_EQ(back, all);
}

TEST(Shard, RefusesWhatIsNoneOfTheStep) {
  const Mesh mesh{1, 2, 1};
  expect_refused<UsageError>(
      [&] {
        (void)layout_tokens(LayoutKind::zigzag, 8, mesh, 2, {0, 8});
      },
      "rank 2 is outside the mesh");
  expect_refused<UsageError>(
      [&] {
        (void)layout_tokens(LayoutKind::zigzag, 8, {1, 0, 1}, 0, {0, 8});
      },
      "ring_inner is 0; it must be 1 to");
  expect_refused<InvalidInput>(
      [&] {
        (void)layout_tokens(LayoutKind::zigzag, 8, mesh, 0, {0, 7});
      },
      "the documents end at 7, the step has 8 tokens");
  expect_refused<InvalidInput>([&] { (void)layout_tokens(LayoutKind::zigzag, 8, mesh, 0, {}); },
                               "no borders of documents");
  expect_refused<InvalidInput>([] { (void)positions_of({3}, {0, 3}); }, "token 3 is beyond the documents");
  expect_refused<InvalidInput>([] { (void)positions_of({-1}, {0, 3}); }, "token -1 is beyond the documents");
  expect_refused<InvalidInput>([] { (void)shifted_labels({1, 2}, {0}, {0, 3}); }, "2 labels were given");
  std::vector<float> all(8), part(4);
  const auto of_all = view_of(all.data(), {1, 4, 1, 2});
  expect_refused<UsageError>(
      [&] {
        gather_rows(of_all, {0, 4}, view_of(part.data(), {1, 2, 1, 2}));
      },
      "token 4 is outside the tensor of 4 tokens");
  expect_refused<UsageError>(
      [&] {
        gather_rows(of_all, {0}, view_of(part.data(), {1, 2, 1, 2}));
      },
      "2 rows for 1 tokens");
  expect_refused<UsageError>(
      [&] {
        scatter_rows(view_of(part.data(), {1, 2, 2, 1}), {0, 1}, of_all);
      },
      "differ in more than their rows");
}

TEST(TypedView, TypeAndConstnessAreThoseOfTheElements) {
  const bf16 halves[4] = {};
  const kernels::ConstView view = view_of(halves, {1, 2, 1, 2});
  EXPECT_EQ(view.type, DType::bf16);
  EXPECT_EQ(view.row_stride, 2);
  double doubles[2] = {};
  static_assert(std::is_same_v<decltype(view_of(doubles, {1, 1, 1, 2})), kernels::View>);
  EXPECT_EQ(view_of(doubles, {1, 1, 1, 2}).type, DType::fp64);
}

}  // namespace
}  // namespace usp::test
