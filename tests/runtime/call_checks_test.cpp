// SPDX-License-Identifier: Apache-2.0
// Which tensors a call takes: results have places of their own, strides stay within the address space, and
// on GPUs a step has rows that the kernels can number.
#include "exec/call_checks.hpp"

#include "exec/call_memory.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/schedule/limits.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace usp::test {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const std::function<void()>& call, const std::string& words) {
  const std::string text = refusal(call);
  EXPECT_NE(text.find(words), std::string::npos) << words << ": " << (text.empty() ? "taken" : text);
}

kernels::View view(std::byte* data, i64 batch, i64 rows, int heads, i64 width) {
  return {data, DType::fp32, batch, rows, {0, heads}, width};
}

kernels::View strided(kernels::View v, i64 batch_stride, i64 row_stride, i64 head_stride) {
  v.batch_stride = batch_stride, v.row_stride = row_stride, v.head_stride = head_stride;
  return v;
}

std::set<const std::byte*> places(const kernels::View& v) {
  std::set<const std::byte*> all;
  for (i64 b = 0; b < v.batch; ++b)
    for (i64 row = 0; row < v.rows; ++row)
      for (i64 head = 0; head < v.heads.size(); ++head)
        for (i64 i = 0; i < v.width * bytes_of(v.type); ++i) all.insert(v.at(b, row, head) + i);
  return all;
}

/// Against every byte: nothing that overlaps is taken, and layouts in use are told apart.
TEST(CallMemory, OverlapIsThatOfTheBytes) {
  std::vector<std::byte> memory(1 << 14);
  std::vector<kernels::View> views;
  for (const i64 at : {0, 1, 2, 4, 6, 8, 24, 64, 150, 500})
    for (const auto& [b, r, h] : {std::tuple(40, 8, 4), std::tuple(120, 24, 4), std::tuple(120, 24, 12),
                                  std::tuple(20, 4, 40), std::tuple(200, 40, 5), std::tuple(150, 30, 10)})
      views.push_back(strided(view(memory.data() + 4 * at, 2, 5, 2, 4), b, r, h));
  int apart = 0, refused_apart = 0;
  for (const kernels::View& a : views)
    for (const kernels::View& b : views) {
      CallMemory call;
      call.writes(a, "a");
      call.reads(b, "b");
      const bool taken = refusal([&] { call.check_apart(); }).empty();
      const auto of_a = places(a), of_b = places(b);
      bool shared = false;
      for (const std::byte* place : of_b) shared = shared || of_a.count(place) > 0;
      EXPECT_FALSE(taken && shared);
      apart += shared ? 0 : 1;
      refused_apart += !shared && !taken ? 1 : 0;
    }
  EXPECT_GT(apart, 100);
  EXPECT_LT(refused_apart, apart);
}

TEST(CallMemory, PackedTensorsInterleave) {
  std::vector<std::byte> memory(1 << 14);
  const auto part = [&](i64 at, int heads, i64 row, i64 head) {
    return strided(view(memory.data() + 4 * at, 2, 7, heads, 8), 7 * row, row, head);
  };
  const auto take = [&](const kernels::View& q, const kernels::View& k, const kernels::View& v) {
    CallMemory call;
    call.writes(q, "dq"), call.writes(k, "dk"), call.writes(v, "dv");
    call.check_apart();
  };
  EXPECT_NO_THROW(take(part(0, 4, 64, 8), part(32, 2, 64, 8), part(48, 2, 64, 8)));    // [row][q k v heads]
  EXPECT_NO_THROW(take(part(0, 4, 96, 24), part(8, 4, 96, 24), part(16, 4, 96, 24)));  // [row][head][3]
  expect_refused([&] { take(part(0, 4, 64, 8), part(24, 2, 64, 8), part(48, 2, 64, 8)); }, "dk overlaps dq");
  expect_refused([&] { take(part(0, 4, 64, 8), part(32, 2, 64, 8), part(40, 2, 64, 8)); }, "dv overlaps dk");
}

TEST(CallMemory, StridesStayInMemory) {
  std::vector<std::byte> memory(1 << 14);
  const kernels::View v = view(memory.data(), 1, 7, 4, 8);
  const auto writes = [](const kernels::View& of) { CallMemory().writes(of, "out"); };
  const auto reads = [](const kernels::View& of) { CallMemory().reads(of, "q"); };
  EXPECT_NO_THROW(writes(strided(v, -5, 32, 8)));  // one batch row: its stride leads nowhere
  expect_refused([&] { writes(strided(v, 0, -32, 8)); }, "out has strides of 0 (batch), -32 (row)");
  expect_refused([&] { reads(strided(v, 0, 32, -8)); }, "negative");
  expect_refused([&] { writes(strided(v, 0, 16, 8)); }, "overwrite each other");
  expect_refused([&] { writes(strided(v, 0, 0, 8)); }, "overwrite each other");
  EXPECT_NO_THROW(reads(strided(v, 0, 0, 8)));  // one row, read for all
  for (const i64 far : {i64{1} << 62, i64{1} << 60, (i64{1} << 63) / 24 * -1 - 1})
    expect_refused([&] { writes(strided(v, 0, far < 0 ? -far : far, 8)); }, "beyond the address space");
  expect_refused([&] { CallMemory().reads(memory.data() + 4, i64{1} << 62, 8, "sink"); }, "sink");
  kernels::View odd = v;
  odd.data += 2;
  expect_refused([&] { reads(odd); }, "no multiple of its elements' 4 bytes");
}

/// No GPU is needed to know that its kernels cannot number the rows, and nothing is allocated for it.
TEST(GpuSteps, AreCheckedOnTheSchedule) {
  AttentionPlan plan;
  plan.shape = {1, 24, 24, 4, 2, 8, 8, DType::bf16};
  plan.mesh = {1, 2, 1};
  plan.backend = Backend::mma;
  const Prepared batch(plan, Documents::single(24, 24), 0);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const schedule::RankSchedule& schedule = batch.schedule(pass);
    EXPECT_NO_THROW(check_gpu_steps(schedule, max_gpu_rows / (12 * 4)));
    EXPECT_THROW(check_gpu_steps(schedule, max_gpu_rows / (12 * 4) + 1), InvalidInput);
  }
}

/// One rank, its tensors in one memory, so that any may be laid over any.
class OneCall : public testing::Test {
 protected:
  OneCall() : ranks_(comm::make_serial_communicator()), kernel_(kernels::make_cpu_kernel()) {
    plan_.shape = {1, 8, 8, 2, 2, 4, 4, DType::bf16};
    plan_.sink = plan_.return_lse = true;
    op_ = std::make_unique<AttentionOperator>(plan_, *ranks_, *kernel_);
    op_->set_batch(Documents::single(8, 8));
    const auto tensor = [&](DType type, i64 width) {
      memory_.emplace_back(8 * 2 * 4 * 8);
      return kernels::View(memory_.back().data(), type, 1, 8, {0, 2}, width);
    };
    memory_.reserve(9);
    for (kernels::View* v : {&q, &k, &v_, &out, &d_out, &dq, &dk, &dv}) *v = tensor(DType::bf16, 4);
    lse = tensor(DType::fp32, 1);
  }
  void forward() { op_->forward({q, k, v_, sink}, out, lse); }
  void backward() { op_->backward({q, k, v_, sink}, d_out, {dq, dk, dv, d_sink}); }

  kernels::View q, k, v_, out, d_out, dq, dk, dv, lse;
  double sink[2] = {}, both[3] = {};
  double* d_sink = both;

 private:
  AttentionPlan plan_;
  std::unique_ptr<comm::Communicator> ranks_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::unique_ptr<AttentionOperator> op_;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_F(OneCall, ForwardWritesWhatIsItsOwn) {
  for (const kernels::View& input : {q, k, v_}) {
    const kernels::View kept = out;
    out.data = input.data + 8;
    expect_refused([&] { forward(); }, "out overlaps ");
    out = kept;
  }
  const kernels::View kept = lse;
  lse.data = out.data;
  expect_refused([&] { forward(); }, "lse overlaps out in memory, which the call writes too");
  lse.data = reinterpret_cast<std::byte*>(sink);
  expect_refused([&] { forward(); }, "lse overlaps sink in memory, which the call still reads");
  lse = kept;
  k.data = v_.data = q.data;  // inputs may be one another
  EXPECT_NO_THROW(forward());
}

TEST_F(OneCall, BackwardWritesWhatIsItsOwn) {
  forward();
  const auto over = [&](kernels::View& result, const kernels::View& other, const std::string& words) {
    const kernels::View kept = result;
    result.data = other.data;
    expect_refused([&] { backward(); }, words);
    result = kept;
  };
  over(dq, q, "dq overlaps q");
  over(dk, v_, "dk overlaps v");
  over(dv, dk, "dv overlaps dk");
  over(dq, d_out, "dq overlaps d_out");
  d_sink = sink;
  expect_refused([&] { backward(); }, "d_sink overlaps sink");
  d_sink = both;
  EXPECT_NO_THROW(backward());
}

TEST_F(OneCall, GradientsHaveTheTypeOfTheInputsOrOfSums) {
  forward();
  for (const DType type : {DType::fp16, DType::fp64}) {
    dk.type = type;
    expect_refused([&] { backward(); }, std::string("dk is ") + (type == DType::fp16 ? "fp16" : "fp64") +
                                            "; a gradient has the plan's bf16, or fp32");
  }
  dk.type = DType::fp32;
  EXPECT_NO_THROW(backward());
}

}  // namespace
}  // namespace usp::test
