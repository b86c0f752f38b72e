// SPDX-License-Identifier: Apache-2.0
// Lists of blocks of keys, on every attention backend.
#include "attention_contract.hpp"
#include "block_trial.hpp"

namespace usp::test {
namespace {

/// One rank of a causal zigzag ring of four: its tokens are the first and the last piece of eight.
Case zigzag() {
  constexpr i64 piece = 40;
  Case c = one_slice("zigzag", rectangle(2 * piece, 8 * piece), 64);
  c.slices.clear();
  for (const i64 own : {i64{0}, i64{7}})
    for (i64 keys = 0; keys <= own; ++keys) {
      schedule::Slice s = banded(piece, piece, 0, unbounded);
      s.q_row = own == 0 ? 0 : piece, s.q_pos = own * piece;
      s.k_row = s.dk_row = s.k_pos = keys * piece;
      c.slices.push_back(s);
    }
  return c;
}

Case documents() {
  Case c = one_slice("documents", rectangle(400, 400), 64);
  c.slices.clear();
  for (i64 at = 0, n = 3; at < 400; at += n, n = n * 5 % 97 + 2) {
    const i64 tokens = std::min(n, 400 - at);
    schedule::Slice s = banded(tokens, tokens, 0, unbounded);
    s.q_row = s.q_pos = s.k_row = s.k_pos = s.dk_row = at;
    c.slices.push_back(s);
    n = tokens;
  }
  return c;
}

/// Slices of every kind, heads of every kind, and terms that some backends leave to another.
std::vector<Case> block_cases() {
  std::vector<Case> all{zigzag(), documents()};
  for (const Case& c : all_cases())
    for (const char* name : {"full_tiles", "causal_tiles", "window", "window_both_ways", "stripe",
                             "unequal_steps", "keys_apart", "kv_group_spans_ranks", "head_dim_128",
                             "head_dim_80", "batch", "sink", "softcap_128_128", "all_terms_stripe"})
      if (c.name == name) all.push_back(c);
  return all;
}

TEST_P(AttentionContract, BlocksEqualReference) {
  const auto kernel = make();
  const std::vector<i64> counts = backend().joins_blocks ? std::vector<i64>{1, 7, 16} : std::vector<i64>{3};
  for (const Case& c : block_cases()) {
    const Inputs in(c, type(), type());
    const Results truth = reference(c, in);
    const kernels::Oracle rows = oracle_of(c, in, rounds());
    for (const i64 count : counts) {
      SCOPED_TRACE(c.name + " in " + std::to_string(count));
      const bool fresh = count != 7;
      BlockTrial run(c, in, even_blocks(c.k_rows, count), fresh);
      run.all(*kernel);
      expect_close(run.results(), truth, tolerance());
      EXPECT_EQ(row_faults(run.results(), rows, rounds()), "");
    }
  }
}

TEST_P(AttentionContract, BlocksThatHoldNothing) {
  const auto kernel = make();
  const Case c = one_slice("holes", banded(150, 150, 0, unbounded), 16);
  const Inputs in(c, type(), type());
  const Results truth = reference(c, in);
  for (const bool fresh : {false, true})
    for (const std::vector<Range>& blocks :
         {std::vector<Range>{{0, 0}, {0, 150}}, {{0, 150}, {150, 150}}, {{0, 70}, {70, 70}, {70, 150}}}) {
      BlockTrial run(c, in, blocks, fresh);
      run.all(*kernel);
      expect_close(run.results(), truth, tolerance());
    }
  Case unseen = c;
  unseen.slices = {banded(150, 150, -500, -400)};
  BlockTrial nothing(unseen, in, even_blocks(150, 3), true);
  nothing.all(*kernel);
  for (const double x : nothing.trial.lse.values()) EXPECT_TRUE(std::isinf(x));
  const Results r = nothing.results();
  for (const std::vector<double>* all : {&r.o, &r.dq, &r.dk, &r.dv})
    for (const double x : *all) EXPECT_EQ(x, 0);
}

TEST_P(AttentionContract, BlocksRepeatBitForBitForward) {
  const auto kernel = make();
  for (const Case& c : {zigzag(), documents()}) {
    const Inputs in(c, type(), type());
    BlockTrial first(c, in, even_blocks(c.k_rows, 5), true), second(c, in, even_blocks(c.k_rows, 5), true);
    first.attend(*kernel);
    second.attend(*kernel);
    EXPECT_EQ(first.trial.o.memory(), second.trial.o.memory());
    EXPECT_EQ(first.trial.lse.memory(), second.trial.lse.memory());
  }
}

TEST_P(AttentionContract, BlocksRepeatBitForBit) {
  const auto kernel = make();
  for (const Case& c : {zigzag(), documents()}) {
    const Inputs in(c, type(), type());
    BlockTrial first(c, in, even_blocks(c.k_rows, 5), true), second(c, in, even_blocks(c.k_rows, 5), true);
    first.all(*kernel);
    second.all(*kernel);
    EXPECT_EQ(first.trial.dq.memory(), second.trial.dq.memory());
    EXPECT_EQ(first.results().dk, second.results().dk);
    EXPECT_EQ(first.results().dv, second.results().dv);
  }
}

TEST_P(AttentionContract, ErrorDoesNotGrowWithBlocks) {
  if (!backend().rounds_steps) GTEST_SKIP() << "nothing is rounded but the state";
  const auto kernel = make();
  const Case c = one_slice("error", rectangle(256, 1024), 64);
  const Inputs in(c, type(), type());
  const Results truth = reference(c, in);
  const auto errors = [&](i64 count) {
    BlockTrial run(c, in, even_blocks(c.k_rows, count), true);
    run.all(*kernel);
    const Results r = run.results();
    return std::vector<double>{error(r.o, truth.o), error(r.dq, truth.dq), error(r.dk, truth.dk),
                               error(r.dv, truth.dv)};
  };
  const std::vector<double> one = errors(1);
  for (const i64 count : {8, 16}) {
    const std::vector<double> several = errors(count);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_LE(several[i], 1.05 * one[i]) << i;
  }
}

TEST_P(AttentionContract, BlocksMayRoundWhatTheyOverwrite) {
  const auto kernel = make();
  if (!kernel->rounds_results()) GTEST_SKIP() << "results have the type of the state";
  const Case c = zigzag();
  const Inputs in(c, type(), type());
  BlockTrial run(c, in, even_blocks(c.k_rows, 4), true, true);
  run.all(*kernel);
  expect_close(run.results(), reference(c, in), tolerance());
}

TEST_P(AttentionContract, RefusesBlocksThatDoNotFitTogether) {
  const auto kernel = make();
  const Case c = zigzag();
  const Inputs in(c, type(), type());
  const BlockTrial run(c, in, even_blocks(c.k_rows, 3), true);
  const std::vector<kernels::AttendArgs> good = run.attend_args();
  const auto list_of = [](const auto& blocks) {
    return kernels::AttendBlocks{blocks.data(), static_cast<i64>(blocks.size())};
  };
  const auto refused = [&](const char* name, auto change) {
    SCOPED_TRACE(name);
    std::vector<kernels::AttendArgs> blocks = good;
    change(blocks);
    EXPECT_THROW((void)kernel->prepare_blocks(list_of(blocks)), InternalError);
  };
  using Blocks = std::vector<kernels::AttendArgs>;
  refused("nothing", [](Blocks& b) { b.clear(); });
  refused("another o", [](Blocks& b) { b[2].o.data += 64; });
  refused("other heads", [](Blocks& b) { b[1].scope.query_heads.end = b[1].scope.query_heads.begin; });
  refused("overwritten twice", [](Blocks& b) { b[1].overwrite = true; });
  refused("keys of another width", [](Blocks& b) { --b[1].k.width; });
  const auto step = kernel->prepare_blocks(list_of(good));
  EXPECT_TRUE(step->fits(list_of(good)));
  Blocks fewer = good;
  fewer.pop_back();
  EXPECT_THROW(step->run(list_of(fewer)), InternalError);
  Blocks other = good;
  other[1].k.row_stride += 8;
  EXPECT_THROW(step->run(list_of(other)), InternalError);
}

/// As the first partial of a block in a ring: dq is carried, dk and dv are not.
TEST_P(AttentionContract, OverwritesKeyGradientsAlone) {
  const auto kernel = make();
  Case c = one_slice("keys_alone", banded(150, 140, 10, unbounded), 64);
  c.k_rows = c.dk_rows = 300;
  const Inputs in(c, type(), type());
  Trial run(c, in), added(c, in);
  for (Trial* trial : {&run, &added}) {
    trial->attend(*kernel, 0, 1);
    trial->delta.set(0.25);
    trial->dq.set(0.5);
  }
  for (Tensor4* x : {&run.dk, &run.dv}) x->set(std::numeric_limits<double>::quiet_NaN());
  kernels::AttendGradArgs args = run.grad_args(0, 1);
  args.overwrite_dkv = true;
  run_once(*kernel, args);
  added.grad(*kernel, 0, 1);
  EXPECT_LT(error(run.dq.values(), added.dq.values()), tolerance());
  EXPECT_LT(error(run.dk.values(), added.dk.values()), tolerance());
  EXPECT_LT(error(run.dv.values(), added.dv.values()), tolerance());
}

}  // namespace
}  // namespace usp::test
