// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "engine.hpp"

#include "usp/base/error.hpp"

namespace usp::kernels::cudnn {
namespace {

[[nodiscard]] schedule::CallTraits traits_of(const AttendGradArgs& a, bool deterministic, int compute_major) {
  schedule::CallTraits call = call_traits(a, compute_major);
  call.backward = true;
  call.deterministic = deterministic;
  call.has_o = a.o.data != nullptr;
  return call;
}

/// Where a block's own gradients lie: as wide as the block.
struct Shapes {
  View dq, dk, dv, stats;
};
[[nodiscard]] Shapes shapes_of(const AttendGradArgs& a, const schedule::BandBlock& b) {
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  Shapes s;
  s.dq = View(nullptr, a.q.type, a.q.batch, b.q_rows.size(), heads, a.q.width);
  s.dk = View(nullptr, a.q.type, a.q.batch, b.k_rows.size(), kv, a.q.width);
  s.dv = View(nullptr, a.q.type, a.q.batch, b.k_rows.size(), kv, a.v.width);
  s.stats = View(nullptr, DType::fp32, a.q.batch, b.q_rows.size(), heads, 1);
  return s;
}

[[nodiscard]] GraphKey key_of(const AttendGradArgs& a, const schedule::BandBlock& b, const ConstView& dq,
                              const ConstView& dk, const ConstView& dv) {
  GraphKey key = block_key(a, b, Direction::backward);
  key.o = strides_of(a.o);
  key.d_o = strides_of(a.d_o);
  key.dq = strides_of(dq);
  key.dk = strides_of(dk);
  key.dv_out = strides_of(dv);
  return key;
}

[[nodiscard]] Range dk_rows(const schedule::BandBlock& b) {
  return {b.k_rows.begin + b.dk_shift, b.k_rows.end + b.dk_shift};
}

}  // namespace

template <class F>
void Engine::with_grad_state(const AttendGradArgs& a, F&& f) {
  if (a.dq.type == DType::fp32 && a.dk.type == DType::fp32 && a.dv.type == DType::fp32) return f(a);
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  AttendGradArgs wide = a;
  wide.dq = View(nullptr, DType::fp32, a.q.batch, a.dq.rows, heads, a.dq.width);
  wide.dk = View(nullptr, DType::fp32, a.q.batch, a.dk.rows, kv, a.dk.width);
  wide.dv = View(nullptr, DType::fp32, a.q.batch, a.dv.rows, kv, a.dv.width);
  state_scratch_.begin();
  for (View* v : {&wide.dq, &wide.dk, &wide.dv}) state_scratch_.want(*v);
  state_scratch_.reserve();
  f(wide);
  const auto round = [&](const View& from, const View& to, Range some) {
    memory_.copy_region(from, {{0, to.rows}, some}, to, {{0, to.rows}, some}, WriteMode::overwrite);
  };
  round(wide.dq, a.dq, heads);
  round(wide.dk, a.dk, kv);
  round(wide.dv, a.dv, kv);
}

void Engine::attend_grad(const AttendGradArgs& given) {
  expects(given.q.type == DType::bf16 || given.q.type == DType::fp16,
          "cuDNN's attention takes bf16 and fp16");
  AttendGradArgs a = given;
  const DType io = a.q.type;
  const bool rows_aligned =
      aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.d_o) && (a.o.data == nullptr || aligned(a.o));
  schedule::BlockSplit share =
      split_into_blocks(a.scope, traits_of(a, options_.deterministic, compute_major_), rows_aligned);
  if (!share.blocks.empty()) {
    // cuDNN takes o and its gradient in the input type.
    View o(nullptr, io, a.q.batch, a.q.rows, a.scope.query_heads, a.v.width), d_o = o;
    input_scratch_.begin();
    if (a.o.type != io) input_scratch_.want(o);
    if (a.d_o.type != io) input_scratch_.want(d_o);
    input_scratch_.reserve();
    const ViewRegion all{{0, a.q.rows}, a.scope.query_heads};
    if (a.o.type != io) memory_.copy_region(a.o, all, o, all, WriteMode::overwrite), a.o = o;
    if (a.d_o.type != io) memory_.copy_region(a.d_o, all, d_o, all, WriteMode::overwrite), a.d_o = d_o;
  }
  const bool whole = share.rest.empty() && share.blocks.size() == 1 &&
                     share.blocks.front().q_rows == Range{0, a.q.rows} &&
                     dk_rows(share.blocks.front()) == Range{0, a.dk.rows};
  const bool direct = a.overwrite && whole && a.dq.type == io && a.dk.type == io && a.dv.type == io &&
                      aligned(a.dq) && aligned(a.dk) && aligned(a.dv);
  const std::vector<Planned> blocks = plan(share, a.scope, Pass::backward, [&](const schedule::BandBlock& b) {
    const Shapes s = shapes_of(a, b);
    return direct ? key_of(a, b, a.dq, a.dk, a.dv) : key_of(a, b, s.dq, s.dk, s.dv);
  });
  if (blocks.empty()) return leave(given);
  if (direct) {
    View stats = shapes_of(a, blocks.front().block).stats;
    block_scratch_.begin();
    block_scratch_.want(stats);
    block_scratch_.reserve();
    const Range kv = a.scope.kv_heads();
    return grad_block(a, blocks.front(),
                      {heads_of(a.dq, a.scope.query_heads), heads_of(a.dk, kv), heads_of(a.dv, kv)}, stats);
  }
  with_grad_state(a, [&](const AttendGradArgs& wide) { grad_merged(wide, blocks, share.rest); });
}

void Engine::grad_by_fallback(const AttendGradArgs& a) {
  if (a.delta.data != nullptr) return fallback().attend_grad(a);
  AttendGradArgs with = a;
  View delta(nullptr, DType::fp32, a.q.batch, a.q.rows, a.scope.query_heads, 1);
  delta_scratch_.begin();
  delta_scratch_.want(delta);
  delta_scratch_.reserve();
  cuda::launch_delta({a.d_o, a.o, a.lse, delta, a.scope.query_heads}, memory_.stream());
  with.delta = delta;
  fallback().attend_grad(with);
}

void Engine::leave(const AttendGradArgs& a) {
  if (fallback().rounds_results()) return grad_by_fallback(a);
  with_grad_state(a, [&](const AttendGradArgs& wide) { grad_by_fallback(wide); });
}

void Engine::grad_block(const AttendGradArgs& a, const Planned& p, const BlockGrads& to, const View& stats) {
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  cuda::launch_pack_lse(a.lse, p.block.q_rows, heads, reinterpret_cast<float*>(stats.data), memory_.stream());
  GraphMemory m;
  m.q = a.q.at(0, p.block.q_rows.begin, heads.begin);
  m.k = a.k.at(0, p.block.k_rows.begin, kv.begin);
  m.v = a.v.at(0, p.block.k_rows.begin, kv.begin);
  m.d_o = a.d_o.at(0, p.block.q_rows.begin, heads.begin);
  m.o = const_cast<std::byte*>(a.o.at(0, p.block.q_rows.begin, heads.begin));
  m.stats = stats.data;
  m.dq = to.dq.data;
  m.dk = to.dk.data;
  m.dv = to.dv.data;
  p.graph->run(m, workspace_->data(), memory_.stream());
  a.scope.progress();
}

void Engine::grad_merged(const AttendGradArgs& a, const std::vector<Planned>& blocks,
                         const std::vector<schedule::Slice>& rest) {
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  // A first block that covers all rows writes them; the others add.
  const bool covers_q = a.overwrite && blocks.front().block.q_rows == Range{0, a.dq.rows};
  const bool covers_k = a.overwrite && dk_rows(blocks.front().block) == Range{0, a.dk.rows};
  if (a.overwrite && !covers_q) memory_.fill(heads_of(a.dq, heads), 0);
  if (a.overwrite && !covers_k) {
    memory_.fill(heads_of(a.dk, kv), 0);
    memory_.fill(heads_of(a.dv, kv), 0);
  }
  bool first = true;
  for (const Planned& p : blocks) {
    Shapes s = shapes_of(a, p.block);
    block_scratch_.begin();
    for (View* v : {&s.dq, &s.dk, &s.dv, &s.stats}) block_scratch_.want(*v);
    block_scratch_.reserve();
    grad_block(a, p, {s.dq, s.dk, s.dv}, s.stats);
    const WriteMode q_mode = first && covers_q ? WriteMode::overwrite : WriteMode::accumulate;
    const WriteMode k_mode = first && covers_k ? WriteMode::overwrite : WriteMode::accumulate;
    cuda::launch_accumulate(s.dq, a.dq, p.block.q_rows, heads, q_mode, memory_.stream());
    cuda::launch_accumulate(s.dk, a.dk, dk_rows(p.block), kv, k_mode, memory_.stream());
    cuda::launch_accumulate(s.dv, a.dv, dk_rows(p.block), kv, k_mode, memory_.stream());
    first = false;
  }
  if (rest.empty()) return;
  AttendGradArgs left = a;
  left.scope.slices = keep(rest);
  left.scope.slice_count = static_cast<i64>(rest.size());
  left.overwrite = false;
  grad_by_fallback(left);
}

}  // namespace usp::kernels::cudnn
