// SPDX-License-Identifier: Apache-2.0
// A layout is a partition of the tokens, never an order, for every kind and any lengths.
#include "schedule_audit.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace usp::test {
namespace {

constexpr LayoutKind kinds[] = {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped,
                                LayoutKind::balanced};

struct LayoutCase {
  LayoutKind kind;
  i64 tokens;
  int ring, ulysses;
  std::vector<i64> cu_seqlens;
};

std::vector<LayoutCase> layout_cases() {
  std::vector<LayoutCase> cases;
  CaseGenerator g(11);
  for (LayoutKind kind : kinds)
    for (int i = 0; i < 400; ++i) {
      LayoutCase c{
          kind, g.between(0, 90), static_cast<int>(g.between(1, 16)), static_cast<int>(g.between(1, 8)), {}};
      if (g.chance(0.1)) c.tokens = g.between(2000, 5000);
      c.cu_seqlens = {0, c.tokens};
      for (i64 d = g.between(0, 9); d > 0; --d) c.cu_seqlens.push_back(g.between(0, c.tokens));
      std::sort(c.cu_seqlens.begin(), c.cu_seqlens.end());
      cases.push_back(c);
    }
  return cases;
}

SequenceLayout layout_of(const LayoutCase& c) {
  return make_layout(c.kind, c.tokens, c.ring, c.ulysses, c.cu_seqlens);
}

std::string describe(const LayoutCase& c) {
  return "kind " + std::to_string(static_cast<int>(c.kind)) + " tokens " + std::to_string(c.tokens) +
         " ring " + std::to_string(c.ring) + " ulysses " + std::to_string(c.ulysses);
}

TEST(ScheduleLayout, EveryTokenHasOneSlotAndSlotsAscend) {
  for (const LayoutCase& c : layout_cases()) {
    const SequenceLayout layout = layout_of(c);
    ASSERT_EQ(layout.ring(), c.ring);
    ASSERT_EQ(layout.tokens(), c.tokens);
    std::vector<int> owners(static_cast<std::size_t>(c.tokens), 0);
    for (int r = 0; r < c.ring; ++r) {
      const std::vector<i64> row = row_tokens(layout, r);
      ASSERT_EQ(static_cast<i64>(row.size()), layout.row_size(r)) << describe(c);
      for (std::size_t slot = 0; slot < row.size(); ++slot) {
        ++owners.at(static_cast<std::size_t>(row[slot]));
        if (slot > 0) {
          ASSERT_LT(row[slot - 1], row[slot]) << describe(c);
        }
        const i64 at = static_cast<i64>(slot);
        ASSERT_EQ(row_tokens(layout, r, {at, at + 1}), std::vector<i64>{row[slot]}) << describe(c);
      }
      i64 next = 0;
      for (const usp::Run& run : layout.row(r)) {
        ASSERT_EQ(run.slot, next) << describe(c);
        ASSERT_GT(run.count, 0);
        next += run.count;
      }
    }
    ASSERT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; })) << describe(c);
  }
}

TEST(ScheduleLayout, EverySlotHasOneHomeAndHomesDifferByOneAtMost) {
  for (const LayoutCase& c : layout_cases()) {
    const SequenceLayout layout = layout_of(c);
    for (int r = 0; r < c.ring; ++r) {
      i64 next = 0;
      for (int u = 0; u < c.ulysses; ++u) {
        const Range home = layout.home(r, u);
        ASSERT_EQ(home.begin, next) << describe(c);
        ASSERT_GE(home.size(), layout.row_size(r) / c.ulysses) << describe(c);
        ASSERT_LE(home.size(), layout.row_size(r) / c.ulysses + 1) << describe(c);
        next = home.end;
      }
      ASSERT_EQ(next, layout.row_size(r)) << describe(c);
    }
  }
}

/// A balanced row is four chunks, each longer than another by one token at most.
TEST(ScheduleLayout, RowsDifferByOneTokenPerChunkAtMost) {
  for (const LayoutCase& c : layout_cases()) {
    const SequenceLayout layout = layout_of(c);
    i64 least = c.tokens, most = 0;
    for (int r = 0; r < c.ring; ++r) {
      least = std::min(least, layout.row_size(r));
      most = std::max(most, layout.row_size(r));
    }
    ASSERT_LE(most - least, c.kind == LayoutKind::balanced ? 4 : 1) << describe(c);
    bool even = most == least;
    for (int r = 0; r < c.ring; ++r)
      for (int u = 0; u < c.ulysses; ++u) even = even && layout.home(r, u).size() == layout.home(0, 0).size();
    ASSERT_EQ(layout.even(), even) << describe(c);
  }
}

/// Zigzag evens out causal work exactly; balanced does so for packed documents within one chunk's area.
TEST(ScheduleLayout, ZigzagAndBalancedShareCausalWork) {
  const auto work = [](const SequenceLayout& layout, int r, const std::vector<i64>& cu) {
    i64 sum = 0;
    for (i64 token : row_tokens(layout, r)) {
      auto border = std::upper_bound(cu.begin(), cu.end(), token);
      sum += token - *(border - 1) + 1;
    }
    return sum;
  };
  for (int ring : {2, 4, 8}) {
    const std::vector<i64> one{0, 64 * ring}, packed{0, 7 * ring, 30 * ring, 64 * ring};
    const SequenceLayout zigzag = make_layout(LayoutKind::zigzag, 64 * ring, ring, 1, one);
    const SequenceLayout balanced = make_layout(LayoutKind::balanced, 64 * ring, ring, 1, packed);
    i64 mean = 0, most = 0;
    for (int r = 0; r < ring; ++r) {
      ASSERT_EQ(work(zigzag, r, one), work(zigzag, 0, one));
      mean += work(balanced, r, packed) / ring;
      most = std::max(most, work(balanced, r, packed));
    }
    ASSERT_LT(static_cast<double>(most), 1.1 * static_cast<double>(mean)) << ring;
  }
}

}  // namespace
}  // namespace usp::test
