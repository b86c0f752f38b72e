// SPDX-License-Identifier: Apache-2.0
#include "call_checks.hpp"

#include "call_memory.hpp"
#include "require.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <string>

namespace usp {
namespace {

std::string type_of(DType type) {
  return std::string(word_of(type));
}

void check_tensor(const kernels::ConstView& view, const char* name, const AttentionShape& shape,
                  const schedule::Buffer& like) {
  const std::string what(name);
  require(view.batch == shape.batch,
          fmt::format("{} has {} batch rows, the plan {}", what, view.batch, shape.batch));
  require(view.rows == like.rows,
          fmt::format("{} has {} rows, this rank holds {} tokens; see q_tokens() and kv_tokens()", what,
                      view.rows, like.rows));
  require(view.heads == like.heads && view.width == like.width,
          fmt::format("{} needs heads 0 to {} of width {}", what, like.heads.end - 1, like.width));
  require(view.data != nullptr || view.elements() == 0, what + " has no memory");
}

const schedule::Buffer& input(const Prepared& prepared, Pass pass, Tensor tensor) {
  return prepared.schedule(pass)
      .buffers[static_cast<std::size_t>(prepared.input(pass, {tensor, BufferSlot::home}))];
}

const schedule::Buffer& result(const Prepared& prepared, Pass pass, Tensor tensor) {
  return prepared.schedule(pass)
      .buffers[static_cast<std::size_t>(prepared.result(pass, {tensor, BufferSlot::home}))];
}

void check_blocks(const AttentionPlan& plan, const kernels::BlockMask* blocks) {
  const AttentionShape& shape = plan.shape;
  const i64 edge = plan.score.block_tokens;
  require((blocks != nullptr) == (edge > 0), edge > 0 ? "the plan has a block pattern: give it"
                                                      : "a block pattern was given, the plan has none");
  if (blocks == nullptr) return;
  const i64 rows = (shape.q_tokens + edge - 1) / edge;
  require(blocks->block_q == edge && blocks->block_k == edge && blocks->rows >= rows &&
              blocks->columns >= rows && blocks->admitted != nullptr,
          fmt::format("the block pattern does not cover the batch in blocks of {} tokens", edge));
  i64 count = 0;
  require(!__builtin_mul_overflow(blocks->rows, blocks->columns, &count) &&
              !__builtin_mul_overflow(count, i64{shape.query_heads}, &count),
          fmt::format("the block pattern has {} x {} blocks per head, more than 64 bits count; give those "
                      "that cover the batch",
                      blocks->rows, blocks->columns));
}

CallMemory memory_of(const AttentionPlan& plan, const AttentionInputs& in) {
  const i64 heads = plan.shape.query_heads;
  CallMemory call;
  call.reads(in.q, "q");
  call.reads(in.k, "k");
  call.reads(in.v, "v");
  call.reads(in.sink, heads, bytes_of(in.sink_type), "sink");
  call.reads(in.alibi_slopes, heads, sizeof(double), "alibi_slopes");
  if (in.blocks != nullptr)
    call.reads(in.blocks->admitted, heads * in.blocks->rows * in.blocks->columns, 1, "blocks");
  return call;
}

}  // namespace

void check_runs_plan(const AttentionPlan& plan, const kernels::AttentionKernel& kernel, int ranks) {
  require(kernel.rounds_results() || !schedule::rounds_once(plan),
          fmt::format("the plan's steps round their results (backend {}), the {} kernel keeps a wider state; "
                      "plan with --backend {}, or run with --device cpu",
                      word_of(plan.backend), kernel.name(), word_of(Backend{})));
  require(kernel.wants_o() || plan.backend.of(Pass::backward)->takes.grad_without_o,
          fmt::format("the plan is for {}, whose backward needs no delta; the {} kernel does: plan with "
                      "another --backend",
                      plan.backend->display_name, kernel.name()));
  require(
      ranks == plan.mesh.size(),
      fmt::format("the plan is for {} ranks, the communicator has {}; start as many ranks as the plan has",
                  plan.mesh.size(), ranks));
}

void check_gpu_steps(const schedule::RankSchedule& schedule, i64 batch) {
  const auto rows = [&](schedule::BufferId id) {
    return schedule.buffers[static_cast<std::size_t>(id)].rows;
  };
  for (const schedule::Step& step : schedule.steps)
    for (const Tensor tensor : {Tensor::o, Tensor::q, Tensor::k}) {
      if (step[tensor] < 0) continue;
      const Range heads = tensor == Tensor::k ? step.kv_heads : step.query_heads;
      check_gpu_rows(batch, rows(step[tensor]), heads.size());
    }
}

void check_inputs(const Prepared& prepared, const AttentionInputs& in) {
  const AttentionPlan& plan = prepared.plan();
  const AttentionShape& shape = plan.shape;
  check_tensor(in.q, "q", shape, input(prepared, Pass::forward, Tensor::q));
  check_tensor(in.k, "k", shape, input(prepared, Pass::forward, Tensor::k));
  check_tensor(in.v, "v", shape, input(prepared, Pass::forward, Tensor::v));
  require(in.q.type == shape.dtype && in.k.type == shape.dtype && in.v.type == shape.dtype,
          "q, k and v must have the plan's dtype");
  require((in.sink != nullptr) == plan.sink,
          plan.sink ? "the plan has a sink: give its logits"
                    : "sink logits were given, the plan has none: plan with a sink");
  require((in.alibi_slopes != nullptr) == plan.score.alibi,
          plan.score.alibi ? "the plan has ALiBi: give its slopes"
                           : "ALiBi slopes were given, the plan has none");
  check_blocks(plan, in.blocks);
}

void check_results(const Prepared& prepared, const AttentionInputs& in, const kernels::View& out,
                   const kernels::View& lse, const MemoryRef& saved) {
  const AttentionPlan& plan = prepared.plan();
  check_tensor(out, "out", plan.shape, result(prepared, Pass::forward, Tensor::o));
  require(out.type == plan.shape.dtype, "out must have the plan's dtype");
  CallMemory call = memory_of(plan, in);
  call.writes(out, "out");
  call.writes(saved.data, saved.bytes, 1, "the saved state");
  if (plan.return_lse) {
    check_tensor(lse, "lse", plan.shape, result(prepared, Pass::forward, Tensor::lse));
    require(lse.type == accumulator_of(plan.shape.dtype), "lse must have the accumulator type");
    call.writes(lse, "lse");
  } else {
    require(lse.data == nullptr,
            "lse was given, the plan does not return it; plan with return_lse (usp.h), return_lse "
            "(AttentionPlan) or --lse, or leave lse out");
  }
  call.check_apart();
}

void check_gradients(const Prepared& prepared, const AttentionInputs& in, const kernels::ConstView& d_out,
                     const AttentionGradients& gradients, const kernels::ConstView& out,
                     const MemoryRef& saved) {
  const AttentionPlan& plan = prepared.plan();
  const DType type = plan.shape.dtype, sum = accumulator_of(type);
  check_tensor(d_out, "d_out", plan.shape, input(prepared, Pass::backward, Tensor::d_o));
  require(d_out.type == type, "d_out must have the plan's dtype");
  require((gradients.d_sink != nullptr) == plan.sink, "d_sink goes with a plan that has a sink");
  CallMemory call = memory_of(plan, in);
  call.reads(d_out, "d_out");
  call.reads(saved.data, saved.bytes, 1, "the saved state");
  if (prepared.input(Pass::backward, {Tensor::o, BufferSlot::home}) >= 0) {
    check_tensor(out, "out of the forward", plan.shape, result(prepared, Pass::forward, Tensor::o));
    require(out.type == type, "out of the forward must have the plan's dtype");
    call.reads(out, "out of the forward");
  }
  const auto written = [&](const kernels::View& view, Tensor tensor, const char* name) {
    check_tensor(view, name, plan.shape, result(prepared, Pass::backward, tensor));
    require(view.type == type || view.type == sum,
            fmt::format("{} is {}; a gradient has the plan's {}{}", name, type_of(view.type), type_of(type),
                        sum == type ? "" : fmt::format(", or {}, that of its sum", type_of(sum))));
    call.writes(view, name);
  };
  written(gradients.dq, Tensor::dq, "dq");
  written(gradients.dk, Tensor::dk, "dk");
  written(gradients.dv, Tensor::dv, "dv");
  call.writes(gradients.d_sink, plan.shape.query_heads, bytes_of(gradients.d_sink_type), "d_sink");
  call.check_apart();
}

}  // namespace usp
