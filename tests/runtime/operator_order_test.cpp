// SPDX-License-Identifier: Apache-2.0
// One operator holds the state of one forward: backward belongs to it and to no other. What must be the same
// on every rank is compared before each forward.
#include "expect_refused.hpp"
#include "runtime_trial.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/errors.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace usp::test {
namespace {

[[nodiscard]] RuntimeCase small(int ring, int ulysses) {
  RuntimeCase c;
  c.plan.mesh = {1, ring, ulysses};
  c.plan.shape = {1, 24, 24, 4, 2, 8, 8, DType::fp32};
  c.plan.band = {0, unbounded};
  c.plan.sink = true;
  c.documents = Documents::single(24, 24);
  return c;
}

/// The tensors of one call on one rank.
struct Call {
  Call(const AttentionShape& s, const AttentionOperator& op, std::uint64_t seed) {
    const auto rows = static_cast<i64>(op.q_tokens().size()), keys = static_cast<i64>(op.kv_tokens().size());
    const auto tensor = [&](HostTensor& t, i64 tokens, i64 heads, i64 width) {
      CaseGenerator draw(seed++);  // each tensor begins alike, however many rows a rank has
      t = HostTensor(s.dtype, s.batch, tokens, heads, width);
      t.set(noise(draw, s.batch, tokens, heads, width, s.dtype).data);
    };
    tensor(q, rows, s.query_heads, s.head_dim_qk), tensor(dq, rows, s.query_heads, s.head_dim_qk);
    tensor(k, keys, s.kv_heads, s.head_dim_qk), tensor(dk, keys, s.kv_heads, s.head_dim_qk);
    tensor(v, keys, s.kv_heads, s.head_dim_v), tensor(dv, keys, s.kv_heads, s.head_dim_v);
    tensor(out, rows, s.query_heads, s.head_dim_v), tensor(d_out, rows, s.query_heads, s.head_dim_v);
    sink.assign(static_cast<std::size_t>(s.query_heads), 0.25);
    d_sink.assign(sink.size(), 0);
  }
  [[nodiscard]] AttentionInputs inputs() const { return {q.view(), k.view(), v.view(), sink.data()}; }
  void forward(AttentionOperator& op) { op.forward(inputs(), out.view()); }
  void backward(AttentionOperator& op) {
    std::fill(d_sink.begin(), d_sink.end(), 0);
    op.backward(inputs(), d_out.view(), {dq.view(), dk.view(), dv.view(), d_sink.data()});
  }
  [[nodiscard]] std::vector<std::vector<std::byte>> gradients() const {
    return {dq.bytes(), dk.bytes(), dv.bytes()};
  }
  HostTensor q, k, v, out, d_out, dq, dk, dv;
  std::vector<double> sink, d_sink;
};

void on_ranks(const RuntimeCase& c,
              const std::function<void(AttentionOperator&, const AttentionShape&, comm::Communicator&)>& body,
              const ExecutorOptions& options = {}) {
  comm::run_threads(c.plan.mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(c.plan, comm, *kernel, options);
    op.set_batch(c.documents);
    body(op, c.plan.shape, comm);
  });
}

TEST(OperatorOrder, BackwardOfAnEarlierForwardIsRefused) {
  for (const auto& [ring, ulysses] : {std::pair(1, 1), std::pair(2, 2)})
    on_ranks(small(ring, ulysses),
             [](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
               const auto seed = static_cast<std::uint64_t>(comm.rank());
               Call a(shape, op, seed), b(shape, op, 100 + seed), alone(shape, op, seed);
               alone.forward(op);
               alone.backward(op);
               a.forward(op);
               b.forward(op);
               expect_refused([&] { a.backward(op); }, "another q than the last forward");
               b.backward(op);
               expect_refused([&] { a.backward(op); }, "another q than the last forward");
               a.forward(op);
               a.backward(op);
               EXPECT_EQ(a.gradients(), alone.gradients());
             });
}

TEST(OperatorOrder, EachInputIsTheForwardsOwn) {
  on_ranks(small(2, 1), [](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
    const auto seed = static_cast<std::uint64_t>(comm.rank());
    Call a(shape, op, seed), b(shape, op, 100 + seed);
    a.forward(op);
    std::swap(a.k, b.k);
    expect_refused([&] { a.backward(op); }, "another k");
    std::swap(a.k, b.k);
    std::swap(a.v, b.v);
    expect_refused([&] { a.backward(op); }, "another v");
    std::swap(a.v, b.v);
    a.sink[1] = 3;
    expect_refused([&] { a.backward(op); }, "other sinks");
  });
}

TEST(OperatorOrder, BackwardRepeatsBitForBit) {
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv, Method::double_ring})
    for (const bool save_exchanged_qkv : {false, true})
      for (const int chunks : {1, 2}) {
        RuntimeCase c = small(4, 2);
        c.plan.method = method;
        if (method == Method::double_ring) c.plan.mesh = {2, 2, 2};
        c.plan.save_exchanged_qkv = save_exchanged_qkv;
        c.plan.head_chunks = chunks;
        on_ranks(c, [](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
          Call a(shape, op, static_cast<std::uint64_t>(comm.rank()));
          a.forward(op);
          a.backward(op);
          const auto first = a.gradients();
          const auto first_sink = a.d_sink;
          a.backward(op);
          EXPECT_EQ(a.gradients(), first);
          EXPECT_EQ(a.d_sink, first_sink);
        });
      }
}

/// Forward alone holds forward's workspace, and gives the same.
TEST(OperatorOrder, ForwardOnlyHoldsNothingOfBackward) {
  for (const auto& [ring, ulysses] : {std::pair(2, 2), std::pair(4, 1), std::pair(1, 4)}) {
    const RuntimeCase c = small(ring, ulysses);
    std::vector<std::vector<std::byte>> expected(static_cast<std::size_t>(c.plan.mesh.size()));
    on_ranks(c, [&](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
      Call a(shape, op, static_cast<std::uint64_t>(comm.rank()));
      a.forward(op);
      expected[static_cast<std::size_t>(comm.rank())] = a.out.bytes();
    });
    ExecutorOptions options;
    options.forward_only = true;
    on_ranks(
        c,
        [&](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
          Call a(shape, op, static_cast<std::uint64_t>(comm.rank()));
          a.forward(op);
          EXPECT_EQ(a.out.bytes(), expected[static_cast<std::size_t>(comm.rank())]);
          EXPECT_LT(op.planned_memory_bytes(false), op.planned_memory_bytes(true));
          EXPECT_LE(op.workspace_bytes(), op.planned_memory_bytes(false));
          expect_refused([&] { a.backward(op); }, "forward alone");
        },
        options);
  }
}

TEST(OperatorOrder, ANewBatchOrNoForwardLeavesNothingToGoBackFrom) {
  const RuntimeCase c = small(2, 1);
  on_ranks(c, [&](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
    Call a(shape, op, static_cast<std::uint64_t>(comm.rank()));
    expect_refused([&] { a.backward(op); }, "after forward of the same batch");
    a.forward(op);
    op.set_batch(c.documents);
    expect_refused([&] { a.backward(op); }, "after forward of the same batch");
  });
}

TEST(OperatorOrder, ARefusedBatchLeavesNone) {
  const RuntimeCase c = small(1, 1);
  on_ranks(c, [&](AttentionOperator& op, const AttentionShape& shape, comm::Communicator&) {
    Call a(shape, op, 0);
    a.forward(op);
    EXPECT_THROW(op.set_batch(Documents::packed({0, 20, 9, 24})), InvalidInput);
    expect_refused([&] { a.forward(op); }, "set_batch comes before forward");
    expect_refused([&] { a.backward(op); }, "set_batch comes before forward");
    op.set_batch(c.documents);
    a.forward(op);
    a.backward(op);
  });
}

TEST(OperatorOrder, ARefusedForwardLeavesTheStateOfTheLast) {
  on_ranks(small(2, 1), [](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
    Call a(shape, op, static_cast<std::uint64_t>(comm.rank())), b(shape, op, 7);
    a.forward(op);
    a.backward(op);
    const auto first = a.gradients();
    kernels::View narrow = b.out.view();
    narrow.width = 1;
    expect_refused([&] { op.forward(b.inputs(), narrow); }, "out needs heads");
    a.backward(op);
    EXPECT_EQ(a.gradients(), first);
  });
}

TEST(OperatorOrder, ACopyOfATokenThatOneRankHoldsOtherwiseIsNoticed) {
  RuntimeCase c = small(2, 1);
  c.plan.replicated_k = {{0, 4}};
  const auto run = [&](float change) {
    on_ranks(c, [&](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
      Call a(shape, op, 5);  // the same rows on every rank
      auto* middle = reinterpret_cast<float*>(a.v.view().at(0, 1, 1));
      if (comm.rank() == 1) middle[3] += change;
      a.forward(op);
    });
  };
  EXPECT_NO_THROW(run(0));
  EXPECT_THROW(run(1), comm::DisagreementError);
}

/// The parameters of a step are another rank's too, in every step and not only in the first.
TEST(OperatorOrder, ASinkThatOneRankChangesLaterIsNoticed) {
  EXPECT_THROW(on_ranks(small(2, 1),
                        [](AttentionOperator& op, const AttentionShape& shape, comm::Communicator& comm) {
                          Call a(shape, op, static_cast<std::uint64_t>(comm.rank()));
                          a.forward(op);
                          if (comm.rank() == 1) a.sink[2] = 0.5;
                          a.forward(op);
                        }),
               comm::DisagreementError);
}

}  // namespace
}  // namespace usp::test
