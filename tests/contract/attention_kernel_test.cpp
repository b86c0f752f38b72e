// SPDX-License-Identifier: Apache-2.0
// What every attention backend must do, for every type it takes.
#include "attention_contract.hpp"
#include "dense_attention.hpp"

#include "usp/base/error.hpp"

#include <utility>

namespace usp::test {
namespace {

/// Whole tensors against the reference, and every row and head within the bound of its own terms.
TEST_P(AttentionContract, EqualsReference) {
  const auto kernel = make();
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in(c, type(), c.seed % 2 == 0 ? type() : state());
    Trial run(c, in);
    run.all(*kernel);
    expect_close(run.results(), known_reference(c, in), tolerance());
    EXPECT_EQ(row_faults(run.results(), oracle_of(c, in, rounds()), rounds()), "");
  }
}

TEST_P(AttentionContract, LayoutsOfTensorsAreAlike) {
  const auto kernel = make();
  Case c = one_slice("layouts", banded(67, 71, -9, 30), 18);
  c.batch = 3;
  c.group = 3;
  c.query_heads = {2, 8};
  c.dv = 10;
  const Inputs in(c, type(), type());
  Trial base(c, in);
  base.all(*kernel);
  for (const Order order : {Order::sequence_first, Order::head_first, Order::padded}) {
    const Inputs same(c, type(), type(), order);
    Trial run(c, same, order);
    run.all(*kernel);
    const Results a = run.results(), b = base.results();
    EXPECT_TRUE(a.o == b.o && a.lse == b.lse && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv);
  }
}

TEST_P(AttentionContract, RepeatsBitForBit) {
  Case c = one_slice("repeat", banded(150, 310, -200, unbounded), 24);
  c.query_heads = {0, 4}, c.group = 2;
  for (const double dropout : {0.0, 0.1}) {
    c.dropout = dropout;
    const Inputs in(c, type(), type());
    Trial first(c, in);
    first.all(*make());
    const auto used = make();
    Case other = one_slice("other", rectangle(40, 90), 40);
    const Inputs other_in(other, type(), type());
    Trial(other, other_in).all(*used);
    Trial second(c, in);
    second.all(*used);
    EXPECT_EQ(first.o.memory(), second.o.memory()) << dropout;
    EXPECT_EQ(first.lse.memory(), second.lse.memory()) << dropout;
    EXPECT_EQ(first.dq.memory(), second.dq.memory()) << dropout;
    EXPECT_EQ(first.dk.memory(), second.dk.memory()) << dropout;
    EXPECT_EQ(first.dv.memory(), second.dv.memory()) << dropout;
  }
}

/// A causal square cut into blocks of keys, last first.
Case blocks_of_keys(i64 rows, i64 block) {
  Case c = one_slice("carried", rectangle(rows, rows), 16);
  c.slices.clear();
  for (i64 key = (rows - 1) / block * block; key >= 0; key -= block) {
    schedule::Slice s = banded(rows, std::min(block, rows - key), 0, unbounded);
    s.k_row = s.k_pos = s.dk_row = key;
    c.slices.push_back(s);
  }
  return c;
}

TEST_P(AttentionContract, CarriedStateEqualsOneCall) {
  const auto kernel = make();
  const Case parts = blocks_of_keys(103, 23);
  Case whole = parts;
  whole.slices = {banded(103, 103, 0, unbounded)};
  const Inputs in(parts, type(), type());
  Trial one(whole, in), several(parts, in);
  one.all(*kernel);
  several.all(*kernel, parts.slices.size());
  expect_close(several.results(), one.results(), tolerance());
  EXPECT_EQ(row_faults(several.results(), oracle_of(whole, in, rounds()), rounds()), "");
}

TEST_P(AttentionContract, RowsThatSeeNothingStayUntouched) {
  const auto kernel = make();
  Case c = one_slice("unseen", banded(80, 33, 30, 50), 11);
  c.blocks = block_mask(4, 40, 80, 33);
  const Inputs in(c, type(), type());
  Trial run(c, in);
  run.o.set(-0.0);
  run.dq.set(-0.0);
  const auto before_o = run.o.memory();
  run.all(*kernel);
  const std::vector<double> lse = run.lse.values();
  const std::vector<double> dq = run.dq.values();
  const std::size_t row = before_o.size() / lse.size(), width = dq.size() / lse.size();
  std::size_t unseen = 0;
  for (std::size_t r = 0; r < lse.size(); ++r) {
    if (!std::isinf(lse[r])) continue;
    ++unseen;
    EXPECT_TRUE(std::equal(before_o.begin() + static_cast<long>(r * row),
                           before_o.begin() + static_cast<long>((r + 1) * row),
                           run.o.memory().begin() + static_cast<long>(r * row)));
    for (std::size_t w = 0; w < width; ++w) EXPECT_EQ(dq[r * width + w], 0.0);
  }
  EXPECT_GT(unseen, 30U);
  EXPECT_LT(unseen, lse.size());
}

TEST_P(AttentionContract, CarriedRowsOutsideTheMaskKeepTheirBits) {
  const auto kernel = make();
  Case c = one_slice("kept", banded(64, 64, 20, unbounded), 9);
  const Inputs in(c, type(), type());
  Trial run(c, in);
  run.o.set(0.3);
  run.lse.set(1.7);
  const auto before = run.o.memory();
  run.attend(*kernel, 0, 1);
  const auto seen_from = static_cast<long>(before.size() / 64 * 20);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + seen_from, run.o.memory().begin()));
  EXPECT_FALSE(std::equal(before.begin() + seen_from, before.end(), run.o.memory().begin() + seen_from));
}

TEST_P(AttentionContract, GradientSkipsRowsThatNothingWasSeenFor) {
  const auto kernel = make();
  const Case c = one_slice("dead", rectangle(30, 40), 6);
  Inputs in(c, type(), type());
  Trial run(c, in);
  run.attend(*kernel, 0, 1);
  std::vector<double> lse = run.lse.values(), q = in.q.values(), d_o = in.d_o.values();
  run.delta.set(0.25);
  for (const std::size_t r : {0U, 13U, 29U}) {
    lse[r] = -std::numeric_limits<double>::infinity();
    for (std::size_t w = 0; w < 6; ++w)
      q[r * 6 + w] = d_o[r * 6 + w] = std::numeric_limits<double>::quiet_NaN();
  }
  run.lse.set(lse);
  in.q.set(q);
  in.d_o.set(d_o);
  const Inputs exact(c, in);
  Trial truth(c, exact);
  truth.lse.set(lse);
  truth.delta.set(0.25);
  truth.grad(*kernels::make_reference_kernel(), 0, 1);
  run.grad(*kernel, 0, 1);
  EXPECT_LT(error(run.dq.values(), truth.dq.values()), tolerance());
  EXPECT_LT(error(run.dk.values(), truth.dk.values()), tolerance());
  EXPECT_LT(error(run.dv.values(), truth.dv.values()), tolerance());
}

/// Keys 1 and queries `logit` in one dimension: the logits are exact in every type.
Case constant_logits(i64 keys) {
  Case c = one_slice("constant", rectangle(5, keys), 1);
  c.dv = 3;
  return c;
}

TEST_P(AttentionContract, LogSumExpOfTrueLogits) {
  const auto kernel = make();
  for (const double logit : {-30000.0, -1000.0, -64.0, 0.0, 64.0, 1000.0, 30000.0}) {
    SCOPED_TRACE(logit);
    const Case c = constant_logits(9);
    Inputs in(c, type(), type());
    in.q.set(logit);
    in.k.set(1.0);
    Trial run(c, in);
    run.attend(*kernel, 0, 1);
    const double q = in.q.values().front();
    for (const double lse : run.lse.values())
      EXPECT_NEAR(lse, q + std::log(9.0), (1 + std::abs(q)) * tolerance() / 10);
    const Results truth = reference(c, in);
    EXPECT_LT(error(run.o.values(), truth.o), type() == DType::fp64 ? 1e-11 : tolerance());
  }
}

TEST_P(AttentionContract, LogitsFarApart) {
  const auto kernel = make();
  const Case c = constant_logits(4);
  Inputs in(c, type(), type());
  in.q.set(1.0);
  in.k.set(std::vector<double>{-20000, 0, 20000, -128});
  Trial run(c, in);
  run.all(*kernel);
  const std::vector<double> v = in.v.values(), o = run.o.values(), dv = run.dv.values();
  // Exactly, where P stays in the state's type: it is 1 for one key and 0 for the others.
  const double limit = backend().tolerance[3] > 0 ? 0 : tolerance();
  for (std::size_t i = 0; i < o.size(); ++i)
    EXPECT_NEAR(o[i], v[2 * 3 + i % 3], limit * std::abs(v[2 * 3 + i % 3]));
  for (std::size_t i = 0; i < dv.size(); ++i) EXPECT_EQ(dv[i] != 0, i / 3 == 2);
}

TEST_P(AttentionContract, MergeWeighsExactly) {
  const auto kernel = make();
  const Case c = constant_logits(1);
  for (const auto& [carried, own] : {std::pair{0.0, 100.0}, {100.0, 0.0}, {0.0, 0.0}, {-64.0, -64.0}}) {
    Inputs in(c, type(), type());
    in.q.set(own);
    in.k.set(1.0);
    in.v.set(1.0);
    Trial run(c, in);
    run.o.set(3.0);
    run.lse.set(carried);
    run.attend(*kernel, 0, 1);
    const double own_as_stored = in.q.values().front();
    const double most = std::max(carried, own_as_stored);
    const double total = std::exp(carried - most) + std::exp(own_as_stored - most);
    const double o = (3 * std::exp(carried - most) + std::exp(own_as_stored - most)) / total;
    for (const double x : run.o.values()) EXPECT_NEAR(x, o, tolerance());
    for (const double x : run.lse.values())
      EXPECT_NEAR(x, most + std::log(total), (1 + std::abs(most)) * tolerance() / 10);
  }
}

TEST_P(AttentionContract, CallsProgressBetweenTiles) {
  const auto kernel = make();
  const Case c = one_slice("progress", rectangle(200, 700), 4);
  const Inputs in(c, type(), type());
  Trial run(c, in);
  int calls = 0;
  run.progress = {[](void* count) { ++*static_cast<int*>(count); }, &calls};
  run.attend(*kernel, 0, 1);
  const int forward = calls;
  run.grad(*kernel, 0, 1);
  if (std::string(kernel->name()) == "reference") return;
  EXPECT_GT(forward, 3);
  EXPECT_GT(calls - forward, 3);
}

TEST_P(AttentionContract, NoSlicesOrHeadsIsNoWork) {
  const auto kernel = make();
  Case c = one_slice("empty", rectangle(4, 4));
  c.slices.clear();
  const Inputs in(c, type(), type());
  Trial run(c, in);
  run.all(*kernel);
  for (const double x : run.dk.values()) EXPECT_EQ(x, 0);
  c.slices = {rectangle(0, 4), rectangle(4, 0)};
  Trial hollow(c, in);
  hollow.all(*kernel);
  for (const double x : hollow.lse.values()) EXPECT_TRUE(std::isinf(x));
}

TEST_P(AttentionContract, RefusesViewsThatDoNotFit) {
  const auto kernel = make();
  Case c = one_slice("misfit", rectangle(6, 6));
  const Inputs in(c, type(), type());
  c.slices[0].q_count = 7;
  EXPECT_THROW(Trial(c, in).attend(*kernel, 0, 1), InternalError);
}

TEST_P(AttentionContract, RefusesATensorOfAnotherBatch) {
  const auto kernel = make();
  Case c = one_slice("batch", rectangle(6, 6));
  c.batch = 2;
  Inputs in(c, type(), type());
  Trial run(c, in);
  EXPECT_NO_THROW(run.all(*kernel));
  const auto cut = [](Tensor4& tensor) {
    const kernels::View v = tensor.view();
    return Tensor4(v.type, 1, v.rows, v.heads, v.width);
  };
  const std::pair<const char*, Tensor4*> tensors[] = {
      {"q", &in.q},          {"k", &in.k},     {"v", &in.v},    {"o", &run.o},   {"lse", &run.lse},
      {"delta", &run.delta}, {"d_o", &in.d_o}, {"dq", &run.dq}, {"dk", &run.dk}, {"dv", &run.dv}};
  for (const auto& [name, tensor] : tensors) {
    const Tensor4 whole = std::exchange(*tensor, cut(*tensor));
    EXPECT_THROW(run.all(*kernel), InternalError) << name;
    *tensor = whole;
  }
}

/// A case with every score term, of several slices, whose rows all see some key.
Case with_all_terms() {
  Case c = blocks_of_keys(90, 40);
  c.group = 2;
  c.query_heads = {1, 5};
  c.softcap = 3;
  c.alibi = true;
  c.dropout = 0.1;
  return c;
}

/// One step of a case, prepared with the tensors of a trial.
struct Prepared {
  Prepared(kernels::AttentionKernel& kernel, const Trial& run)
      : slices(run.c.slices.size()),
        attend(kernel.prepare(run.attend_args(0, slices))),
        grad(kernel.prepare(run.grad_args(0, slices))) {}
  void run(kernels::AttentionKernel& kernel, Trial& trial) const {
    attend->run(trial.attend_args(0, slices));
    kernel.delta(
        {trial.in.d_o.view(), trial.o.view(), trial.lse.view(), trial.delta.view(), trial.c.query_heads});
    grad->run(trial.grad_args(0, slices));
  }
  std::size_t slices;
  std::unique_ptr<kernels::PreparedAttend> attend;
  std::unique_ptr<kernels::PreparedAttendGrad> grad;
};

/// All bits but those of dq, which atomics may add up in any order.
void expect_equal_bits(const Trial& a, const Trial& b) {
  EXPECT_EQ(a.o.memory(), b.o.memory());
  EXPECT_EQ(a.lse.memory(), b.lse.memory());
  EXPECT_EQ(a.dk.memory(), b.dk.memory());
  EXPECT_EQ(a.dv.memory(), b.dv.memory());
}

TEST_P(AttentionContract, APreparedStepRunsAtAnyAddress) {
  const auto kernel = make();
  for (Case c : {with_all_terms(), blocks_of_keys(90, 40)}) {
    const Inputs in(c, type(), type());
    Trial first(c, in);
    const Prepared step(*kernel, first);
    step.run(*kernel, first);
    EXPECT_LT(error(first.results().dq, reference(c, in).dq), tolerance());
    c.slices.assign(c.slices.size(), rectangle(1, 1));  // those of prepare hold
    const Inputs moved(c, type(), type());              // the same numbers
    Trial second(c, moved);
    step.run(*kernel, second);
    expect_equal_bits(first, second);
    EXPECT_LT(error(second.dq.values(), first.dq.values()), tolerance());
  }
}

TEST_P(AttentionContract, SeedsAndListsComeWithEachRun) {
  const auto kernel = make();
  const Case c = with_all_terms();
  const Inputs in(c, type(), type());
  Trial first(c, in);
  const Prepared step(*kernel, first);
  Trial other(c, in), fresh(c, in);
  other.terms.terms.dropout_seed = fresh.terms.terms.dropout_seed = 12345;
  for (double& slope : other.terms.slopes) slope *= 2;
  for (double& slope : fresh.terms.slopes) slope *= 2;
  step.run(*kernel, other);
  fresh.all(*kernel);
  step.run(*kernel, first);
  expect_equal_bits(other, fresh);
  EXPECT_NE(first.o.memory(), other.o.memory());
}

TEST_P(AttentionContract, RefusesArgumentsOfAnotherForm) {
  const auto kernel = make();
  const Case c = with_all_terms();
  const Inputs in(c, type(), type());
  Trial run(c, in);
  const Prepared step(*kernel, run);
  const kernels::AttendArgs args = run.attend_args(0, step.slices);
  EXPECT_TRUE(step.attend->fits(args));
  const auto refused = [&](const char* name, auto change) {
    SCOPED_TRACE(name);
    kernels::AttendArgs other = args;
    kernels::ScoreTerms terms = *args.scope.terms;
    other.scope.terms = &terms;
    change(other, terms);
    EXPECT_FALSE(step.attend->fits(other));
    EXPECT_THROW(step.attend->run(other), InternalError);
  };
  using A = kernels::AttendArgs;
  using T = kernels::ScoreTerms;
  refused("row stride", [](A& a, T&) { a.k.row_stride += 8; });
  refused("alignment", [](A& a, T&) { a.q.data += bytes_of(a.q.type); });
  refused("rows", [](A& a, T&) { --a.v.rows; });
  refused("type", [](A& a, T&) { a.o.type = a.o.type == DType::bf16 ? DType::fp16 : DType::bf16; });
  refused("heads", [](A& a, T&) { ++a.scope.query_heads.begin; });
  refused("slices", [](A& a, T&) { --a.scope.slice_count; });
  refused("overwrite", [](A& a, T&) { a.overwrite = !a.overwrite; });
  refused("scale", [](A&, T& terms) { terms.scale *= 2; });
  refused("softcap", [](A&, T& terms) { terms.softcap = 0; });
  refused("no slopes", [](A&, T& terms) { terms.alibi_slopes = nullptr; });
  refused("dropout", [](A&, T& terms) { terms.dropout = 0.2; });
  kernels::AttendGradArgs grad = run.grad_args(0, step.slices);
  EXPECT_TRUE(step.grad->fits(grad));
  grad.dk.head_stride += 8;
  EXPECT_THROW(step.grad->run(grad), InternalError);
}

TEST_P(AttentionContract, StepsEndBetweenRunsOfOthers) {
  const auto kernel = make();
  const Case c = with_all_terms();
  Case other = with_all_terms();
  other.slices = {banded(90, 90, -20, 20)};
  const Inputs in(c, type(), type()), other_in(other, type(), type());
  Trial alone(c, in), kept(c, in), gone(other, other_in), next(other, other_in);
  Prepared(*kernel, alone).run(*kernel, alone);
  auto ending = std::make_unique<Prepared>(*kernel, gone);
  const Prepared staying(*kernel, kept);
  ending->run(*kernel, gone);
  ending.reset();
  const Prepared later(*kernel, next);
  staying.run(*kernel, kept);
  later.run(*kernel, next);
  expect_equal_bits(kept, alone);
  expect_equal_bits(next, gone);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionContract, ::testing::ValuesIn(parameters()), name_of_parameter);

}  // namespace
}  // namespace usp::test
