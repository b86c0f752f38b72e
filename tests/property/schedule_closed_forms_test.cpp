// SPDX-License-Identifier: Apache-2.0
// Even, unpruned plans send what the closed forms of the literature say. These formulas live only here.
#include "schedule_audit.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

constexpr i64 width = 3, io_bytes = 2, sum_bytes = 4;

struct Volumes {
  i64 forward = 0, backward = 0;
};

/// The closed forms, in bytes that every rank sends per call.
///   DeepSpeed-Ulysses (arXiv:2309.14509), with grouped KV: (U-1)/U X (2 H + 2 G') each way
///   Ring attention (arXiv:2310.01889): 2 G' X forward; backward KV again and dK, dV in fp32 per hop
struct ClosedForms {
  i64 ring = 1, ulysses = 1, query_heads = 0, kv_heads = 0;
  i64 shard = 0;  ///< X: bytes of one head of one rank's tokens
  bool shared = false;

  [[nodiscard]] i64 kv_copies() const { return std::max(kv_heads, ulysses); }
  [[nodiscard]] i64 exchange(i64 heads) const { return (ulysses - 1) * shard * heads / ulysses; }
  [[nodiscard]] i64 ring_forward() const { return (ring - 1) * 2 * kv_copies() * shard; }
  [[nodiscard]] Volumes with_hops(i64 hops) const {
    const i64 sums = shared ? sum_bytes / io_bytes : 1;
    return {exchange(2 * query_heads + 2 * kv_copies()) + ring_forward(),
            exchange(2 * query_heads + 2 * kv_copies() * sums) + ring_forward() +
                2 * (sum_bytes / io_bytes) * kv_copies() * shard * hops};
  }
  [[nodiscard]] i64 re_entry() const { return exchange(query_heads + 2 * kv_copies()); }
};

void expect(const ScheduleCase& c, Volumes expected) {
  const Expanded all(c);
  const auto ranks = static_cast<std::size_t>(c.plan.mesh.size());
  ASSERT_EQ(sent_bytes(all.of(Pass::forward)), std::vector<i64>(ranks, expected.forward)) << describe(c);
  ASSERT_EQ(sent_bytes(all.of(Pass::backward)), std::vector<i64>(ranks, expected.backward)) << describe(c);
}

void check_double_rings(ScheduleCase c, const ClosedForms& form) {
  const int ring = c.plan.mesh.ring();
  c.plan.method = Method::double_ring;
  for (int inner = 1; inner <= ring; ++inner) {
    if (ring % inner != 0) continue;
    c.plan.mesh.ring_inner = inner;
    c.plan.mesh.ring_outer = ring / inner;
    for (DkvReturn way : {DkvReturn::circulate, DkvReturn::direct}) {
      c.plan.dkv_return = way;
      expect(c, form.with_hops(ring - 1));
    }
    c.plan.dkv_return = DkvReturn::cycle;
    expect(c, form.with_hops(ring > 1 ? ring : 0));
  }
}

void check(ScheduleCase c, const ClosedForms& form) {
  const i64 ring = form.ring;
  for (Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv}) {
    c.plan.method = method;
    c.plan.dkv_return = DkvReturn::circulate;
    expect(c, form.with_hops(ring - 1));
  }
  c.plan.method = Method::ring;
  c.plan.dkv_return = DkvReturn::direct;
  expect(c, form.with_hops(ring - 1));
  if (ring > 1) {
    c.plan.dkv_return = DkvReturn::cycle;
    expect(c, form.with_hops(ring));
  }
  c.plan.dkv_return = DkvReturn::circulate;
  c.plan.save_exchanged_qkv = false;
  Volumes again = form.with_hops(ring - 1);
  again.backward += form.re_entry();
  expect(c, again);
  c.plan.save_exchanged_qkv = true;
  check_double_rings(c, form);
}

TEST(ScheduleClosedForms, EveryMeshMethodLayoutAndReturn) {
  const std::vector<std::pair<int, int>> head_combinations{{24, 24}, {24, 12}, {24, 2},  {24, 1},
                                                           {48, 6},  {64, 8},  {64, 16}, {32, 32}};
  int meshes = 0;
  for (int ranks : {1, 2, 3, 4, 6, 8, 12, 16})
    for (int ulysses = 1; ulysses <= ranks; ++ulysses)
      for (const auto& [query, kv] : head_combinations) {
        if (ranks % ulysses != 0 || query % ulysses != 0) continue;
        if (kv % ulysses != 0 && ulysses % kv != 0) continue;
        for (LayoutKind layout :
             {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped, LayoutKind::balanced}) {
          ScheduleCase c;
          const i64 tokens = 8 * ranks;
          c.plan.mesh = {1, ranks / ulysses, ulysses};
          c.plan.layout = layout;
          c.plan.shape = {2, tokens, tokens, query, kv, width, width, DType::bf16};
          c.plan.band = {0, unbounded};
          c.documents = Documents::single(tokens, tokens);
          ClosedForms form{ranks / ulysses, ulysses, query, kv, 2 * tokens / ranks * width * io_bytes, false};
          form.shared = ulysses > kv;
          check(c, form);
          if (HasFatalFailure()) return;
          ++meshes;
        }
      }
  EXPECT_GT(meshes, 300);
}

/// All-gather KV over the whole group: (P-1)/P of the global K and V.
TEST(ScheduleClosedForms, AllGatherOfTheWholeGroup) {
  for (int ranks : {2, 4, 8, 16}) {
    ScheduleCase c;
    const i64 tokens = 8 * ranks, batch = 2, kv_heads = 4;
    c.plan.mesh = {1, ranks, 1};
    c.plan.method = Method::all_gather_kv;
    c.plan.shape = {batch, tokens, tokens, 8, static_cast<int>(kv_heads), width, width, DType::bf16};
    c.documents = Documents::single(tokens, tokens);
    const i64 expected = (ranks - 1) * (2 * batch * tokens * kv_heads * width * io_bytes) / ranks;
    for (i64 bytes : sent_bytes(Expanded(c).of(Pass::forward))) ASSERT_EQ(bytes, expected);
  }
}

}  // namespace
}  // namespace usp::test
