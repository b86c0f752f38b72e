// SPDX-License-Identifier: Apache-2.0
// The smallest inputs of failures that users of other systems reported in public, with the report as source;
// each runs on threads and is held against the fp64 oracle, forward and backward.
#include "runtime_trial.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

namespace usp::test {
namespace {

struct Reported {
  const char* source;
  int ring, ulysses;
  AttentionShape shape;  ///< batch, q_tokens, kv_tokens, query_heads, kv_heads, Dqk, Dv, dtype
  Documents documents;
  Band band = {0, unbounded};
  LayoutKind layout = LayoutKind::zigzag;
  double dropout = 0;
  int head_chunks = 1;
};

[[nodiscard]] RuntimeCase case_of(const Reported& r) {
  RuntimeCase c;
  c.plan.mesh = {1, r.ring, r.ulysses};
  c.plan.shape = r.shape;
  c.plan.band = r.band;
  c.plan.layout = r.layout;
  c.plan.score.dropout = r.dropout;
  c.plan.head_chunks = r.head_chunks;
  c.plan.return_lse = true;
  c.documents = r.documents;
  c.seed = 41;
  return c;
}

[[nodiscard]] double tolerance_of(DType type) {
  return type == DType::fp64 ? 1e-10 : type == DType::fp32 ? 1e-5 : type == DType::fp16 ? 2e-3 : 1e-2;
}

/// Gradients have the type of the inputs, and what has not arrived reads as NaN.
void expect_exact(const Reported& reported) {
  const RuntimeCase c = case_of(reported);
  std::mutex mutex;
  comm::run_threads(c.plan.mesh.size(), {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    const TrialErrors e = run_trial(c, comm, *kernel, {.debug_nan = true});
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(reported.source);
    const double tolerance = tolerance_of(c.plan.shape.dtype);
    EXPECT_LE(e.o, tolerance);
    EXPECT_LE(e.lse, tolerance);
    EXPECT_LE(e.dq, tolerance);
    EXPECT_LE(e.dk, tolerance);
    EXPECT_LE(e.dv, tolerance);
    EXPECT_EQ(e.rows, "");
    EXPECT_EQ(e.bytes, "");
  });
}

[[nodiscard]] AttentionShape self_attention(i64 batch, i64 tokens, int heads, int kv_heads, int width,
                                            DType type) {
  return {batch, tokens, tokens, heads, kv_heads, width, width, type};
}

[[nodiscard]] Documents one(i64 tokens) {
  return Documents::single(tokens, tokens);
}

const std::vector<Reported>& reported_cases() {
  constexpr DType fp16 = DType::fp16, fp32 = DType::fp32, fp64 = DType::fp64;
  constexpr LayoutKind zigzag = LayoutKind::zigzag;
  constexpr Band full{};
  static const std::vector<Reported> all = {
      {"batch 2, scattered heads: deepspeedai/DeepSpeed #5808", 1, 2, self_attention(2, 4, 4, 4, 1, fp64),
       one(4)},
      {"queries that see no key: flashinfer-ai/flashinfer #4401, pytorch #134650",
       2,
       1,
       {1, 4, 2, 2, 1, 8, 8, fp32},
       Documents::single(4, 2)},
      {"the same over heads", 1, 2, {1, 4, 2, 2, 1, 8, 8, fp32}, Documents::single(4, 2)},
      {"lse of a short sequence: feifeibear/long-context-attention #122", 2, 1,
       self_attention(1, 16, 2, 2, 128, fp16), one(16)},
      {"the same over heads", 1, 2, self_attention(1, 16, 2, 2, 128, fp16), one(16)},
      {"packed, 64/8 heads, few at a time: zhuzilin/ring-flash-attention #46, #47, #21",
       2,
       1,
       self_attention(1, 12, 64, 8, 8, fp32),
       Documents::packed({0, 5, 12}),
       {0, unbounded},
       zigzag,
       0,
       8},
      {"gradients of remote chunks: huggingface/diffusers #14265", 2, 1, self_attention(1, 32, 2, 2, 8, fp64),
       one(32), full},
      {"non-causal with zigzag: pytorch/pytorch #141429", 2, 1, self_attention(1, 128, 1, 1, 64, fp32),
       one(128), full},
      {"4 tokens: pytorch/pytorch #159706", 2, 1, self_attention(1, 4, 1, 1, 4, fp64), one(4)},
      {"2 tokens: pytorch/pytorch #159706", 2, 1, self_attention(1, 2, 1, 1, 4, fp64), one(2)},
      {"3 tokens: pytorch/pytorch #159634", 2, 1, self_attention(1, 3, 1, 1, 4, fp64), one(3)},
      {"2999 tokens: jzhang38/EasyContext #47, #57",
       4,
       1,
       self_attention(1, 2999, 1, 1, 4, fp32),
       one(2999),
       {0, 255}},
      {"7 tokens of 4 + 3: NVIDIA/TransformerEngine #1930", 2, 1, self_attention(1, 7, 1, 1, 8, fp16),
       Documents::packed({0, 4, 7})},
      {"odd documents: NVIDIA/Megatron-LM #4495", 2, 1, self_attention(1, 15, 2, 1, 8, fp32),
       Documents::packed({0, 5, 8, 15})},
      {"five documents in a row: axolotl-ai-cloud/axolotl #3608", 2, 1, self_attention(1, 40, 2, 2, 8, fp32),
       Documents::packed({0, 9, 12, 25, 31, 40})},
      {"a window of 4: PrimeIntellect-ai/prime-rl #2828, huggingface/accelerate #4177",
       2,
       1,
       self_attention(1, 16, 2, 2, 8, fp32),
       one(16),
       {0, 3}},
      {"dropout 0.1: zhuzilin/ring-flash-attention #36, NVIDIA/Megatron-LM #1256",
       2,
       1,
       self_attention(1, 32, 2, 2, 8, fp64),
       one(32),
       {0, unbounded},
       zigzag,
       0.1},
      {"exchanges awaited before use: ByteDance-Seed/VeOmni #420", 1, 4, self_attention(1, 24, 8, 4, 8, fp32),
       one(24)},
      {"fp16 gradients: zhuzilin/ring-flash-attention #87", 2, 2, self_attention(1, 32, 4, 2, 16, fp16),
       one(32)},
      {"ring and heads in their own groups: sgl-project/sglang #33353", 2, 2,
       self_attention(1, 16, 2, 2, 8, fp64), one(16)}};
  return all;
}

TEST(ReportedCases, EqualTheOracle) {
  for (const Reported& reported : reported_cases()) expect_exact(reported);
}

/// jzhang38/EasyContext #47, feifeibear/long-context-attention #154: 8423 tokens on 8 ranks, which no chunk
/// divides.
TEST(ReportedCases, UnevenLengthsKeepTheirRows) {
  for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped}) {
    RuntimeCase c =
        case_of({"", 8, 1, self_attention(1, 8423, 1, 1, 4, DType::fp32), one(8423), {0, 7}, layout});
    std::mutex mutex;
    std::vector<i64> tokens;
    comm::run_threads(8, {}, [&](comm::Communicator& comm) {
      const auto kernel = kernels::make_cpu_kernel();
      AttentionOperator op(c.plan, comm, *kernel);
      op.set_batch(c.documents);
      EXPECT_EQ(run_trial(c, comm, *kernel, {}, false).bytes, "");
      const std::lock_guard lock(mutex);
      tokens.insert(tokens.end(), op.q_tokens().begin(), op.q_tokens().end());
    });
    std::sort(tokens.begin(), tokens.end());
    std::vector<i64> every(8423);
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(tokens, every);
  }
}

[[nodiscard]] std::vector<std::vector<i64>> tokens_of_ranks(int ring, LayoutKind layout) {
  const RuntimeCase c =
      case_of({"", ring, 1, self_attention(1, 16, 1, 1, 4, DType::fp32), one(16), {}, layout});
  std::vector<std::vector<i64>> tokens(static_cast<std::size_t>(ring));
  comm::run_threads(ring, {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(c.plan, comm, *kernel);
    op.set_batch(c.documents);
    tokens[static_cast<std::size_t>(comm.rank())] = op.q_tokens();
  });
  return tokens;
}

/// InternLM/InternEvo #316, deepspeedai/DeepSpeed #8114: the positions that a rank's rows stand for.
TEST(ReportedCases, RanksKnowTheirPositions) {
  EXPECT_EQ(tokens_of_ranks(4, LayoutKind::contiguous),
            (std::vector<std::vector<i64>>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(tokens_of_ranks(2, LayoutKind::zigzag),
            (std::vector<std::vector<i64>>{{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}}));
}

/// deepspeedai/DeepSpeed #5808: values 0..15 + 16 * rank go through both exchanges and come back. A query
/// that sees its own key alone gives that value, bit for bit; a NaN row sees none (pytorch #134650).
TEST(ReportedCases, ValuesComeBackBitForBit) {
  RuntimeCase c = case_of({"", 1, 2, self_attention(2, 4, 4, 4, 1, DType::fp32), one(4), {0, 0}});
  comm::run_threads(2, {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(c.plan, comm, *kernel);
    op.set_batch(c.documents);
    HostTensor q(DType::fp32, 2, 2, 4, 1), out(DType::fp32, 2, 2, 4, 1), lse(DType::fp32, 2, 2, 4, 1);
    std::vector<double> values(16);
    std::iota(values.begin(), values.end(), 16.0 * comm.rank());
    q.set(values);
    op.forward({q.view(), q.view(), q.view()}, out.view(), lse.view());
    EXPECT_EQ(out.values(), values) << "rank " << comm.rank();
  });
}

TEST(ReportedCases, RowsThatSeeNothingAreZero) {
  const RuntimeCase c = case_of({"", 2, 1, {1, 4, 2, 1, 1, 4, 4, DType::fp32}, Documents::single(4, 2)});
  comm::run_threads(2, {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(c.plan, comm, *kernel);
    op.set_batch(c.documents);
    const auto rows = static_cast<i64>(op.q_tokens().size()), keys = static_cast<i64>(op.kv_tokens().size());
    HostTensor q(DType::fp32, 1, rows, 1, 4), k(DType::fp32, 1, keys, 1, 4), lse(DType::fp32, 1, rows, 1, 1);
    HostTensor results(DType::fp32, 1, rows, 1, 4), dq(DType::fp32, 1, rows, 1, 4),
        dk(DType::fp32, 1, keys, 1, 4), dv(DType::fp32, 1, keys, 1, 4);
    q.set(std::vector<double>(static_cast<std::size_t>(rows * 4), 1.5));
    k.set(std::vector<double>(static_cast<std::size_t>(keys * 4), 0.5));
    op.forward({q.view(), k.view(), k.view()}, results.view(), lse.view());
    op.backward({q.view(), k.view(), k.view()}, q.view(), {dq.view(), dk.view(), dv.view()});
    const std::vector<double> o = results.values(), l = lse.values(), g = dq.values();
    for (std::size_t row = 0; row < op.q_tokens().size(); ++row) {
      const bool blind = op.q_tokens()[row] < 2;  // aligned at the end: the last query sees both keys
      EXPECT_EQ(l[row] == -std::numeric_limits<double>::infinity(), blind);
      for (std::size_t x = 0; x < 4; ++x) {
        EXPECT_EQ(o[row * 4 + x], blind ? 0 : 0.5);
        EXPECT_TRUE(std::isfinite(g[row * 4 + x]));
        EXPECT_TRUE(!blind || g[row * 4 + x] == 0);
      }
    }
  });
}

/// deepseek-ai/DeepEP #589: buffers that are filled again while somebody still reads them show in a thousand
/// steps of next to no compute.
TEST(ReportedCases, AThousandStepsAreBitIdentical) {
  const RuntimeCase c = case_of({"", 4, 1, self_attention(1, 19, 2, 1, 8, DType::fp32), one(19)});
  comm::run_threads(4, {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(c.plan, comm, *kernel);
    op.set_batch(c.documents);
    const auto rows = static_cast<i64>(op.q_tokens().size());
    const auto tensor = [&](int heads, int width) { return HostTensor(DType::fp32, 1, rows, heads, width); };
    HostTensor q = tensor(2, 8), k = tensor(1, 8), v = tensor(1, 8), out = tensor(2, 8), lse = tensor(2, 1),
               dq = tensor(2, 8), dk = tensor(1, 8), dv = tensor(1, 8);
    CaseGenerator draw(static_cast<std::uint64_t>(comm.rank()));
    for (HostTensor* t : {&q, &k, &v}) t->set(noise(draw, 1, rows, t == &q ? 2 : 1, 8, DType::fp32).data);
    std::vector<std::vector<std::byte>> first;
    for (int step = 0; step < 1000; ++step) {
      op.forward({q.view(), k.view(), v.view()}, out.view(), lse.view());
      op.backward({q.view(), k.view(), v.view()}, q.view(), {dq.view(), dk.view(), dv.view()});
      const std::vector<std::vector<std::byte>> now{out.bytes(), lse.bytes(), dq.bytes(), dk.bytes(),
                                                    dv.bytes()};
      if (step == 0) first = now;
      ASSERT_EQ(now, first) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace usp::test
