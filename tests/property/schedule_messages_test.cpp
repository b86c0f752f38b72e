// SPDX-License-Identifier: Apache-2.0
// Sends match receives, lives cover uses, and nothing touches memory that a message is reading or writing.
#include "schedule_audit.hpp"

#include "usp/schedule/effort.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace usp::test {
namespace {

using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  ///< move, source, target

/// Bytes by their definition: regions x width x batch x the type on the wire.
i64 packed_bytes(const schedule::RankSchedule& s, const schedule::Transfer& t, i64 batch) {
  i64 bytes = 0;
  for_each(s.regions, t.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
    bytes += region.rows.size() * region.heads.size() * buffer_of(s, region.buffer).width * batch *
             bytes_of(t.wire);
  });
  return bytes;
}

void check_matching(const ScheduleCase& c, const Expanded& all, Pass pass) {
  std::map<Key, std::pair<const schedule::RankSchedule*, const schedule::Transfer*>> sent;
  for (const schedule::RankSchedule& s : all.of(pass))
    for (const schedule::Transfer& t : s.transfers) {
      if (!t.send) continue;
      ASSERT_TRUE(sent.emplace(Key{t.move, s.rank, t.peer}, std::pair(&s, &t)).second) << describe(c);
      ASSERT_EQ(t.bytes, t.peer == s.rank ? 0 : packed_bytes(s, t, c.plan.shape.batch)) << describe(c);
    }
  for (const schedule::RankSchedule& s : all.of(pass))
    for (const schedule::Transfer& t : s.transfers) {
      if (t.send) continue;
      const auto found = sent.find(Key{t.move, t.peer, s.rank});
      ASSERT_NE(found, sent.end()) << "a receive without a send, " << describe(c);
      const auto& [source, m] = found->second;
      ASSERT_EQ(t.bytes, m->bytes) << describe(c);
      ASSERT_EQ(t.bytes, t.peer == s.rank ? 0 : packed_bytes(s, t, c.plan.shape.batch)) << describe(c);
      ASSERT_EQ(std::tuple(t.write_mode, t.wire, t.start, t.due, t.push),
                std::tuple(m->write_mode, m->wire, m->start, m->due, m->push));
      const auto from = cells_of(all.geometry, *source, *m), to = cells_of(all.geometry, s, t);
      ASSERT_EQ(from.size(), to.size()) << describe(c);
      for (std::size_t i = 0; i < from.size(); ++i)
        ASSERT_EQ(std::tuple(from[i].tensor, from[i].token, from[i].head),
                  std::tuple(to[i].tensor, to[i].token, to[i].head))
            << describe(c);
      sent.erase(found);
    }
  ASSERT_TRUE(sent.empty()) << "a send without a receive, " << describe(c);
}

/// The steps of a tick: what a list joins, and what each awaits, which it alone of the tick reads.
void check_list_steps(const ScheduleCase& c, const schedule::RankSchedule& s, const schedule::Tick& tick) {
  const schedule::Step* before = nullptr;
  for_each(s.steps, tick.steps, [&](const schedule::Step& step, std::int32_t) {
    ASSERT_TRUE(c.plan.gated || (!step.joined && step.gates.count == 0)) << describe(c);
    if (step.joined) {
      ASSERT_NE(before, nullptr) << describe(c);
      ASSERT_TRUE(before->is(*step.operation)) << describe(c);
      ASSERT_EQ(before->query_heads, step.query_heads) << describe(c);
      ASSERT_EQ(before->kv_heads, step.kv_heads) << describe(c);
      ASSERT_EQ(before->backend.use, step.backend.use) << describe(c);
      ASSERT_FALSE(step.overwrite) << describe(c);
      for (const Tensor x : {Tensor::q, Tensor::o, Tensor::lse, Tensor::d_o, Tensor::delta, Tensor::dq})
        ASSERT_EQ((*before)[x], step[x]) << describe(c);
    }
    for_each(s.gates, step.gates, [&](std::int32_t gate, std::int32_t) {
      const schedule::Transfer& m = s.transfers.at(static_cast<std::size_t>(gate));
      ASSERT_EQ(m.write_mode, WriteMode::overwrite) << describe(c);
      ASSERT_LT(m.stage, 0) << describe(c);
      for_each(s.regions, m.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
        for_each(s.steps, tick.steps, [&](const schedule::Step& other, std::int32_t) {
          const bool reads = other[Tensor::k] == region.buffer || other[Tensor::v] == region.buffer;
          if (reads && other.key_rows.begin < region.rows.end && region.rows.begin < other.key_rows.end) {
            ASSERT_EQ(&other, &step) << describe(c);
          }
        });
      });
    });
    before = &step;
  });
}

/// What leaves early follows the one step that computes it, in the tick before its start.
void check_early(const ScheduleCase& c, const schedule::RankSchedule& s, const schedule::Transfer& m) {
  ASSERT_TRUE(c.plan.gated || !m.early) << describe(c);
  ASSERT_TRUE(m.follows < 0 || (m.early && m.send)) << describe(c);
  if (!m.early || !m.send) return;
  ASSERT_LT(m.stage, 0) << describe(c);
  std::set<std::int32_t> computing;
  for_each(s.steps, s.ticks.at(static_cast<std::size_t>(m.start - 1)).steps,
           [&](const schedule::Step& step, std::int32_t i) {
             for_each(s.regions, m.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
               const bool writes = step[Tensor::dk] == region.buffer || step[Tensor::dv] == region.buffer;
               if (writes && step.dk_rows.begin < region.rows.end && region.rows.begin < step.dk_rows.end)
                 computing.insert(i);
             });
           });
  ASSERT_LE(computing.size(), 1U) << describe(c);
  ASSERT_EQ(m.follows, computing.empty() ? -1 : *computing.begin()) << describe(c);
}

/// Every transfer is posted once, at its start; every receive arrives once, at its due tick: for a step that
/// awaits it, or at the end.
void check_lists(const ScheduleCase& c, const schedule::RankSchedule& s) {
  std::vector<int> posted(s.transfers.size(), 0), arrived(s.transfers.size(), 0), ran(s.steps.size(), 0);
  for (std::size_t t = 0; t < s.ticks.size(); ++t) {
    for_each(s.transfers, s.ticks[t].posts, [&](const schedule::Transfer& m, std::int32_t i) {
      ASSERT_EQ(m.start, static_cast<std::int32_t>(t)) << describe(c);
      ASSERT_LE(m.start, m.due) << describe(c);
      ASSERT_LT(m.due, static_cast<std::int32_t>(s.ticks.size())) << describe(c);
      ++posted.at(static_cast<std::size_t>(i));
    });
    const auto arrive = [&](std::int32_t i, std::int32_t) {
      const schedule::Transfer& m = s.transfers.at(static_cast<std::size_t>(i));
      ASSERT_EQ(m.due, static_cast<std::int32_t>(t)) << describe(c);
      ASSERT_FALSE(m.send);
      ++arrived.at(static_cast<std::size_t>(i));
    };
    for_each(s.steps, s.ticks[t].steps, [&](const schedule::Step& step, std::int32_t i) {
      ++ran.at(static_cast<std::size_t>(i));
      for_each(s.gates, step.gates, arrive);
    });
    for_each(s.arrivals, s.ticks[t].arrivals, arrive);
    check_list_steps(c, s, s.ticks[t]);
  }
  for (std::size_t i = 0; i < s.transfers.size(); ++i) {
    ASSERT_EQ(posted[i], 1) << describe(c);
    ASSERT_EQ(arrived[i], s.transfers[i].send ? 0 : 1) << describe(c);
    check_early(c, s, s.transfers[i]);
  }
  for (int n : ran) ASSERT_EQ(n, 1) << describe(c);
}

/// One use of a region of a buffer, from one moment to another. A tick has four moments: posts, steps,
/// arrivals, and the wait for sends.
struct Access {
  Range rows, heads;
  std::int32_t from = 0, to = 0;
  bool write = false;
  bool ordered = false;  ///< arrivals and steps of one moment run in the listed order
};

class Accesses {
 public:
  Accesses(const ScheduleCase& c, const schedule::RankSchedule& s)
      : case_(c), s_(s), list_(s.buffers.size()) {
    for (const std::int32_t gate : s.gates) gates_.insert(&s.transfers.at(static_cast<std::size_t>(gate)));
    for (const schedule::Transfer& t : s.transfers) transfer(t);
    for (const schedule::Keep& k : s.keeps) keep(k);
    for (std::size_t t = 0; t < s.ticks.size(); ++t)
      for_each(s.steps, s.ticks[t].steps, [&](const schedule::Step& step, std::int32_t) {
        if (step.is(schedule::operations::attend)) attend(step, static_cast<std::int32_t>(t));
        if (step.is(schedule::operations::delta)) delta(step, static_cast<std::int32_t>(t));
        if (step.is(schedule::operations::attend_grad)) attend_grad(step, static_cast<std::int32_t>(t));
      });
  }

  void check_lives() const {
    std::map<std::pair<Tensor, BufferSlot>, std::int32_t> busy_until;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const schedule::Buffer& b = s_.buffers[i];
      for (const Access& a : list_[i]) {
        ASSERT_LE(b.first, a.from / 4) << describe(case_);
        ASSERT_GE(b.last, a.to / 4) << describe(case_);
        ASSERT_GE(std::min(a.rows.begin, a.heads.begin - b.heads.begin), 0) << describe(case_);
        ASSERT_LE(a.rows.end, b.rows) << describe(case_);
        ASSERT_LE(a.heads.end, b.heads.end) << describe(case_);
      }
      if (b.name.place == BufferSlot::stage || kept_.contains(static_cast<schedule::BufferId>(i))) continue;
      const auto [known, fresh] = busy_until.emplace(std::pair(b.name.tensor, b.name.place), b.last);
      if (!fresh) {
        ASSERT_LT(known->second, b.first) << "bound again while in use, " << describe(case_);
      }
      known->second = b.last;
    }
  }

  void check_conflicts() const {
    for (std::size_t i = 0; i < list_.size(); ++i)
      for (std::size_t a = 0; a < list_[i].size(); ++a)
        for (std::size_t b = 0; b < a; ++b)
          ASSERT_FALSE(conflict(list_[i][a], list_[i][b]))
              << "tensor " << static_cast<int>(s_.buffers[i].name.tensor) << " place "
              << static_cast<int>(s_.buffers[i].name.place) << " moments " << list_[i][a].from << "-"
              << list_[i][a].to << " and " << list_[i][b].from << "-" << list_[i][b].to << ", "
              << describe(case_);
  }

 private:
  [[nodiscard]] static bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }
  [[nodiscard]] static bool conflict(const Access& a, const Access& b) {
    return (a.write || b.write) && !(a.ordered && b.ordered) && a.from <= b.to && b.from <= a.to &&
           overlap(a.rows, b.rows) && overlap(a.heads, b.heads);
  }
  void note(schedule::BufferId id, const Access& a) { list_.at(static_cast<std::size_t>(id)).push_back(a); }

  /// A send reads until it is waited for. A receive without a stage may be written at any time until it is
  /// applied; else only then. What a step awaits is there before it (check_list_steps).
  void transfer(const schedule::Transfer& t) {
    const bool direct = t.write_mode == WriteMode::overwrite && t.stage < 0;
    Access a;
    a.write = !t.send;
    a.ordered = !t.send && !direct;
    a.from = a.ordered ? 4 * t.due + 2 : 4 * t.start;
    if (t.early && t.send) a.from = 4 * (t.start - 1) + 2;  // beside other steps: check_early
    a.to = t.send ? 4 * t.due + 3 : 4 * t.due + (gates_.contains(&t) ? 0 : 2);
    for_each(s_.regions, t.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
      a.rows = region.rows;
      a.heads = region.heads;
      note(region.buffer, a);
    });
    if (t.stage >= 0) {
      Access stage{{0, 1}, {0, 1}, 4 * (t.early ? t.start - 1 : t.start), 4 * t.due + (t.send ? 3 : 2),
                   true,   false};
      note(t.stage, stage);
    }
  }
  /// After the steps of its tick, until the pass ends.
  void keep(const schedule::Keep& k) {
    const auto ticks = static_cast<std::int32_t>(s_.ticks.size());
    const schedule::Buffer &from = buffer_of(s_, k.from), &to = buffer_of(s_, k.to);
    ASSERT_TRUE(from.internal(ticks)) << describe(case_);
    ASSERT_EQ(to.last, ticks) << describe(case_);
    ASSERT_EQ(from.name, to.name) << describe(case_);
    ASSERT_EQ(std::tuple(from.type, from.rows, from.width), std::tuple(to.type, to.rows, to.width));
    ASSERT_TRUE(kept_.insert(k.to).second) << describe(case_);
    Access a{{0, from.rows}, from.heads, 4 * k.tick + 2, 4 * ticks - 1, false, false};
    note(k.from, a);
    a.write = true;
    note(k.to, a);
  }
  /// Rows of a buffer that a slice of a step counts from those of its block.
  [[nodiscard]] static Range rows_of(Range block, i64 row, i64 count) {
    return {block.begin + row, block.begin + row + count};
  }
  void touch(schedule::BufferId id, Range rows, Range heads, std::int32_t tick, bool write) {
    note(id, {rows, heads, 4 * tick + 1, 4 * tick + 1, write, true});
  }
  void attend(const schedule::Step& x, std::int32_t t) {
    if (x.overwrite)
      for (schedule::BufferId id : {x[Tensor::o], x[Tensor::lse]})
        touch(id, {0, buffer_of(s_, id).rows}, x.query_heads, t, true);
    for_each(s_.slices, x.slices, [&](const schedule::Slice& s, std::int32_t) {
      const Range queries{s.q_row, s.q_row + s.q_count}, keys = rows_of(x.key_rows, s.k_row, s.k_count);
      touch(x[Tensor::q], queries, x.query_heads, t, false);
      for (schedule::BufferId id : {x[Tensor::k], x[Tensor::v]}) touch(id, keys, x.kv_heads, t, false);
      for (schedule::BufferId id : {x[Tensor::o], x[Tensor::lse]}) touch(id, queries, x.query_heads, t, true);
    });
  }
  void delta(const schedule::Step& x, std::int32_t t) {
    const Range rows{0, buffer_of(s_, x[Tensor::o]).rows};
    for (schedule::BufferId id : {x[Tensor::d_o], x[Tensor::o], x[Tensor::lse]})
      touch(id, rows, x.query_heads, t, false);
    touch(x[Tensor::delta], rows, x.query_heads, t, true);
  }
  void attend_grad(const schedule::Step& x, std::int32_t t) {
    if (x.overwrites_dkv())
      for (schedule::BufferId id : {x[Tensor::dk], x[Tensor::dv]}) touch(id, x.dk_rows, x.kv_heads, t, true);
    for_each(s_.slices, x.slices, [&](const schedule::Slice& s, std::int32_t) {
      const Range queries{s.q_row, s.q_row + s.q_count}, keys = rows_of(x.key_rows, s.k_row, s.k_count),
                                                         sums = rows_of(x.dk_rows, s.dk_row, s.k_count);
      for (schedule::BufferId id : {x[Tensor::q], x[Tensor::d_o], x[Tensor::lse],
                                    x[Tensor::delta] < 0 ? x[Tensor::o] : x[Tensor::delta]})
        touch(id, queries, x.query_heads, t, false);
      for (schedule::BufferId id : {x[Tensor::k], x[Tensor::v]}) touch(id, keys, x.kv_heads, t, false);
      touch(x[Tensor::dq], queries, x.query_heads, t, true);
      for (schedule::BufferId id : {x[Tensor::dk], x[Tensor::dv]}) touch(id, sums, x.kv_heads, t, true);
    });
  }

  const ScheduleCase& case_;
  const schedule::RankSchedule& s_;
  std::vector<std::vector<Access>> list_;
  std::set<schedule::BufferId> kept_;
  std::set<const schedule::Transfer*> gates_;
};

void check(const ScheduleCase& c, schedule::PeerReach reach = schedule::PeerReach::all) {
  const Expanded all(c, reach);
  for (Pass pass : both_passes) {
    check_matching(c, all, pass);
    for (const schedule::RankSchedule& s : all.of(pass)) {
      check_lists(c, s);
      const Accesses accesses(c, s);
      accesses.check_lives();
      accesses.check_conflicts();
    }
  }
}

TEST(ScheduleMessages, RandomCases) {
  CaseGenerator g(5);
  for (int i = 0; i < 800 && !testing::Test::HasFailure(); ++i) check(g.draw());
}

TEST(ScheduleMessages, EvenCases) {
  CaseGenerator g(6);
  for (int ranks : {4, 8, 12, 16})
    for (int i = 0; i < 15 && !testing::Test::HasFailure(); ++i) check(g.draw_even(ranks, 1));
}

/// The end of a message that its peer copies from or into.
void check_reached(const ScheduleCase& c, const schedule::RankSchedule& s, const schedule::Transfer& t) {
  const auto ticks = static_cast<int>(s.ticks.size());
  if (t.peer == s.rank || t.send == t.push) return;
  if (t.stage >= 0) {
    ASSERT_TRUE(buffer_of(s, t.stage).internal(ticks)) << describe(c);
    return;
  }
  for_each(s.regions, t.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
    ASSERT_TRUE(buffer_of(s, region.buffer).internal(ticks)) << describe(c);
  });
}

/// Peers that reach the workspace only: the laws hold, one end is in it, and payload is staged where it was.
/// What lands in the workspace is kept for backward.
TEST(ScheduleMessages, ReachTheWorkspaceOnly) {
  CaseGenerator g(12);
  i64 pushes = 0, keeps = 0;
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    const ScheduleCase c = g.draw();
    check(c, schedule::PeerReach::workspace);
    const Expanded plain(c), reached(c, schedule::PeerReach::workspace);
    for (Pass pass : both_passes)
      for (std::size_t p = 0; p < plain.of(pass).size(); ++p) {
        const schedule::RankSchedule &a = plain.of(pass)[p], &b = reached.of(pass)[p];
        ASSERT_EQ(a.transfers.size(), b.transfers.size());
        ASSERT_TRUE(a.keeps.empty());
        keeps += static_cast<i64>(b.keeps.size());
        for (std::size_t m = 0; m < b.transfers.size(); ++m) {
          check_reached(c, b, b.transfers[m]);
          pushes += b.transfers[m].push ? 1 : 0;
          ASSERT_EQ(a.transfers[m].stage >= 0, b.transfers[m].stage >= 0) << describe(c);
          ASSERT_FALSE(a.transfers[m].push) << describe(c);
        }
      }
  }
  EXPECT_GT(pushes, 0);
  EXPECT_GT(keeps, 0);
}

TEST(ScheduleMessages, AreAsManyAsForeseen) {
  CaseGenerator g(31);
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const ScheduleCase c = g.draw();
    const Expanded all(c);
    double transfers = 0, blocks = 0;
    for (Pass pass : both_passes)
      for (const schedule::RankSchedule& s : all.of(pass)) {
        transfers += static_cast<double>(s.transfers.size());
        blocks += static_cast<double>(s.slices.size());
      }
    const int ranks = c.plan.mesh.size();
    const ExpansionEffort effort = expansion_effort(c.plan, c.documents.count(), ranks);
    EXPECT_GE(effort.messages, transfers) << describe(c);
    if (ranks == 1) continue;
    EXPECT_EQ(effort.messages, ranks * expansion_effort(c.plan, c.documents.count(), 1).messages);
    EXPECT_GE(effort.blocks, blocks) << describe(c);
  }
}

TEST(ScheduleMessages, OfWholeBlocksAreForeseenExactly) {
  AttentionPlan plan;
  plan.shape = {1, 4096, 4096, 8, 8, 16, 16, DType::bf16};
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv})
    for (const int chunks : {1, 2}) {
      plan.method = method;
      plan.mesh = {1, 6, 2};
      plan.head_chunks = chunks;
      const Expanded all({plan, Documents::single(4096, 4096)});
      std::size_t transfers = 0;
      for (Pass pass : both_passes)
        for (const schedule::RankSchedule& s : all.of(pass)) transfers += s.transfers.size();
      EXPECT_EQ(expansion_effort(plan, 1, plan.mesh.size()).messages, static_cast<double>(transfers));
    }
}

}  // namespace
}  // namespace usp::test
