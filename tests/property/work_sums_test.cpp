// SPDX-License-Identifier: Apache-2.0
// What pricing sums up (rows by class, documents as a whole, transfers by kind) equals what it stands for.
#include "usp/planner/detail/work_profile.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/effort.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace usp {
namespace {

using Random = std::mt19937_64;

i64 pick(Random& random, i64 low, i64 high) {
  return low + static_cast<i64>(random() % static_cast<std::uint64_t>(high - low + 1));
}

struct Sum {
  schedule::Intervals rows, keys;
  double area = 0;
  [[nodiscard]] BlockShape shape() {
    schedule::normalize(rows);
    schedule::normalize(keys);
    return {static_cast<double>(schedule::total(rows)), static_cast<double>(schedule::total(keys)), area};
  }
};

/// By key row, from the slices one by one.
std::map<int, Sum> by_slices(const schedule::TokenMap& geometry, int r) {
  std::map<int, Sum> sums;
  for (const schedule::RowSlice& s : geometry.slices_of_row(r)) {
    Sum& sum = sums[s.key_row];
    sum.rows.push_back({s.slice.q_row, s.slice.q_row + s.slice.q_count});
    sum.keys.push_back({s.slice.k_row, s.slice.k_row + s.slice.k_count});
    sum.area += static_cast<double>(schedule::area(s.slice));
  }
  return sums;
}

AttentionPlan random_plan(Random& random, bool documents) {
  AttentionPlan plan;
  const bool doubled = pick(random, 0, 1) == 1;
  plan.mesh = {doubled ? static_cast<int>(pick(random, 2, 5)) : 1, static_cast<int>(pick(random, 1, 7)), 1};
  plan.method = doubled ? Method::double_ring : Method::ring;
  plan.layout = static_cast<LayoutKind>(pick(random, 0, documents ? 3 : 2));
  const i64 tokens = pick(random, 1, 120);
  plan.shape = {1, tokens, tokens, 4, 2, 8, 8, DType::bf16};
  if (pick(random, 0, 3) > 0) plan.band.diff_min = 0;
  if (pick(random, 0, 2) == 0) plan.band.diff_max = pick(random, 0, tokens);
  return plan;
}

Documents random_documents(Random& random, i64 tokens) {
  std::vector<i64> cu{0};
  const i64 longest = pick(random, 1, 30);
  while (cu.back() < tokens) cu.push_back(std::min(tokens, cu.back() + pick(random, 1, longest)));
  return Documents::packed(std::move(cu));
}

TEST(WorkSums, PartsOfARowAddUpToItsSlices) {
  Random random(7);
  for (int trial = 0; trial < 400; ++trial) {
    const AttentionPlan plan = random_plan(random, true);
    const schedule::TokenMap geometry(plan, random_documents(random, plan.shape.q_tokens));
    for (int r = 0; r < plan.mesh.ring(); ++r) {
      std::map<int, Sum> expected = by_slices(geometry, r), found;
      geometry.visit_row(r, [&](const schedule::RowPart& part) {
        Sum& sum = found[part.key_row];
        sum.rows.push_back(part.queries);
        sum.keys.push_back(part.keys);
        sum.area += static_cast<double>(part.area);
      });
      ASSERT_EQ(found.size(), expected.size()) << trial;
      for (auto& [key_row, sum] : found) EXPECT_EQ(sum.shape(), expected.at(key_row).shape()) << trial;
    }
  }
}

TEST(WorkSums, WholeDocumentsAreOnePart) {
  AttentionPlan plan;
  plan.mesh = {1, 2, 1};
  plan.layout = LayoutKind::contiguous;
  plan.shape = {1, 4000, 4000, 4, 2, 8, 8, DType::bf16};
  plan.band.diff_min = 0;
  std::vector<i64> cu;
  for (i64 token = 0; token <= 4000; ++token) cu.push_back(token);
  const schedule::TokenMap geometry(plan, Documents::packed(std::move(cu)));
  int parts = 0;
  double pairs = 0;
  for (int r = 0; r < 2; ++r)
    geometry.visit_row(r, [&](const schedule::RowPart& part) {
      ++parts;
      pairs += static_cast<double>(part.area);
    });
  EXPECT_EQ(parts, 2);
  EXPECT_EQ(pairs, 4000);
}

/// A front of one offset leaves out only what another shape of it covers, and makes nothing up.
TEST(WorkSums, FrontsOfUnevenRowsAreThoseOfAllPairsOfRows) {
  Random random(11);
  for (int trial = 0; trial < 400; ++trial) {
    const AttentionPlan plan = random_plan(random, false);
    const Mesh& mesh = plan.mesh;
    const schedule::TokenMap geometry(plan, Documents::single(plan.shape.q_tokens, plan.shape.q_tokens));
    const WorkProfile profile(geometry);
    std::map<int, std::vector<BlockShape>> by_offset;
    double pairs = 0;
    for (int r = 0; r < mesh.ring(); ++r) {
      std::map<int, Sum> sums = by_slices(geometry, r);
      for (int d = 0; d < mesh.ring(); ++d) {
        const auto block = sums.find(mesh.row_at(r, Mesh::back(mesh.shift_of(d))));
        if (block == sums.end()) continue;
        by_offset[d].push_back(block->second.shape());
        pairs += block->second.area;
      }
    }
    EXPECT_EQ(profile.total_area(), pairs) << trial;
    for (int d = 0; d < mesh.ring(); ++d) {
      const auto at = static_cast<std::int16_t>(d);
      const ParetoFront& front =
          profile.pareto_front(profile.front_of({at, static_cast<std::int16_t>(d + 1)}));
      for (const BlockShape& shape : front)
        EXPECT_NE(std::find(by_offset[d].begin(), by_offset[d].end(), shape), by_offset[d].end()) << trial;
      for (const BlockShape& shape : by_offset[d])
        EXPECT_TRUE(std::any_of(front.begin(), front.end(),
                                [&](const BlockShape& other) {
                                  return other.full() == shape.full() && other.rows >= shape.rows &&
                                         other.keys >= shape.keys &&
                                         other.area * shape.rows >= shape.area * other.rows;
                                }))
            << trial << ", offset " << d;
    }
  }
}

TEST(WorkSums, MovesTogetherAreAsManyBytesAsOneByOne) {
  Random random(13);
  for (int trial = 0; trial < 200; ++trial) {
    AttentionPlan plan = random_plan(random, false);
    plan.mesh.ulysses = static_cast<int>(pick(random, 1, 3));
    plan.head_chunks = static_cast<int>(pick(random, 1, 2));
    plan.dkv_return = static_cast<DkvReturn>(pick(random, 0, 2));
    const schedule::TokenMap geometry(plan, Documents::single(plan.shape.q_tokens, plan.shape.q_tokens));
    schedule::CompactSchedule schedule;
    schedule::generate(plan, geometry.heads().shared_kv(), schedule);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const std::vector<i64> none(static_cast<std::size_t>(plan.mesh.size()), 0);
      Ledger one_by_one{none, none};
      for (const schedule::TransferOp& move : schedule.of(pass).transfers)
        add_move(geometry, move, one_by_one);
      const Ledger together = ledger(geometry, schedule.of(pass));
      EXPECT_EQ(together.sent, one_by_one.sent) << trial;
      EXPECT_EQ(together.received, one_by_one.received) << trial;
    }
  }
}

TEST(WorkSums, TooMuchWorkIsNamed) {
  AttentionPlan plan;
  plan.mesh = {1, 8192, 1};
  plan.method = Method::ring_direct;
  EXPECT_EQ(too_much_work({1000, 1000, 1000}, plan), "");
  EXPECT_NE(too_much_work({1e12, 0, 0}, plan).find("ring 8192, ring_direct, zigzag"), std::string::npos);
  EXPECT_NE(too_much_work({0, 1e12, 0}, plan), "");
  EXPECT_NE(too_much_work({0, 0, 1e12}, plan), "");
}

TEST(WorkSums, GatheredMovesAreAsManyBytesAsRankByRank) {
  Random random(14);
  for (int trial = 0; trial < 100; ++trial) {
    AttentionPlan plan = random_plan(random, false);
    plan.method = Method::all_gather_kv;
    plan.mesh = {1, static_cast<int>(pick(random, 2, 6)), static_cast<int>(pick(random, 1, 3))};
    const schedule::TokenMap geometry(plan, Documents::single(plan.shape.q_tokens, plan.shape.q_tokens));
    schedule::CompactSchedule schedule;
    schedule::generate(plan, geometry.heads().shared_kv(), schedule);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Ledger bytes = ledger(geometry, schedule.of(pass));
      for (int rank = 0; rank < plan.mesh.size(); ++rank) {
        i64 sent = 0, received = 0;
        for (const schedule::Transfer& t : schedule::expand(geometry, schedule, rank, pass).transfers)
          (t.send ? sent : received) += t.bytes;
        EXPECT_EQ(bytes.sent[static_cast<std::size_t>(rank)], sent) << trial;
        EXPECT_EQ(bytes.received[static_cast<std::size_t>(rank)], received) << trial;
      }
    }
  }
}

TEST(WorkSums, PrunedRingsAreRefusedByWhatTheirHopsLookUp) {
  AttentionPlan plan;
  plan.shape.q_tokens = plan.shape.kv_tokens = 1 << 20;
  plan.prune = true;
  plan.mesh = {1, 2048, 1};
  EXPECT_EQ(too_much_work(effort_of(plan, 1, 0), plan), "");
  plan.mesh = {1, 4096, 1};
  EXPECT_NE(too_much_work(effort_of(plan, 1, 0), plan).find("the keys that each hop can skip"),
            std::string::npos);
}

TEST(WorkSums, SchedulesTooLongToExpandAreNamed) {
  AttentionPlan plan;
  plan.shape.q_tokens = plan.shape.kv_tokens = 1 << 20;
  plan.mesh = {1, 32767, 1};
  EXPECT_EQ(too_much_to_expand(expansion_effort(plan, 1, 1), plan), "");
  const std::string text = too_much_to_expand(expansion_effort(plan, 1, plan.mesh.size()), plan);
  EXPECT_NE(text.find("ring 32767, ring, zigzag"), std::string::npos) << text;
  EXPECT_NE(text.find("sends and receives; the limit is 8388608"), std::string::npos) << text;
  EXPECT_NE(too_much_to_expand({0, 1e12}, plan).find("1000000000000 blocks; the limit is"),
            std::string::npos);
}

}  // namespace
}  // namespace usp
