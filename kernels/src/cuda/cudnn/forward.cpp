// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "engine.hpp"

#include "usp/base/error.hpp"

#include <limits>

namespace usp::kernels::cudnn {
namespace {

[[nodiscard]] GraphKey key_of(const AttendArgs& a, const schedule::BandBlock& b, const Strides& o) {
  GraphKey key = block_key(a, b, Direction::forward);
  key.o = o;
  return key;
}

[[nodiscard]] View block_output(const AttendArgs& a, const schedule::BandBlock& b) {
  return {nullptr, a.q.type, a.q.batch, b.q_rows.size(), a.scope.query_heads, a.v.width};
}
/// As cuDNN writes statistics.
[[nodiscard]] View block_stats(const AttendArgs& a, const schedule::BandBlock& b) {
  View v(nullptr, DType::fp32, a.q.batch, b.q_rows.size(), a.scope.query_heads, 1);
  v.head_stride = v.rows;
  v.row_stride = 1;
  return v;
}

void fill_empty(const AttendArgs& a, Memory& memory) {
  const Range heads = a.scope.query_heads;
  memory.fill(heads_of(a.o, heads), 0);
  if (a.sink == nullptr)
    memory.fill(heads_of(a.lse, heads), -std::numeric_limits<double>::infinity());
  else
    memory.fill_heads(heads_of(a.lse, heads), a.sink);
}

}  // namespace

template <class F>
void Engine::with_state(const AttendArgs& a, F&& f) {
  if (a.o.type == DType::fp32) return f(a);
  AttendArgs wide = a;
  wide.o = View(nullptr, DType::fp32, a.o.batch, a.o.rows, a.scope.query_heads, a.o.width);
  state_scratch_.begin();
  state_scratch_.want(wide.o);
  state_scratch_.reserve();
  f(wide);
  const ViewRegion all{{0, a.o.rows}, a.scope.query_heads};
  memory_.copy_region(wide.o, all, a.o, all, WriteMode::overwrite);
}

void Engine::attend(const AttendArgs& a) {
  expects(a.q.type == DType::bf16 || a.q.type == DType::fp16, "cuDNN's attention takes bf16 and fp16");
  const bool rows_aligned = aligned(a.q) && aligned(a.k) && aligned(a.v);
  schedule::BlockSplit share = split_into_blocks(a.scope, call_traits(a, compute_major_), rows_aligned);
  const bool direct = a.overwrite && a.sink == nullptr && a.o.type == a.q.type && share.rest.empty() &&
                      share.blocks.size() == 1 && share.blocks.front().q_rows == Range{0, a.q.rows} &&
                      aligned(a.o);
  const std::vector<Planned> blocks = plan(share, a.scope, Pass::forward, [&](const schedule::BandBlock& b) {
    return key_of(a, b, strides_of(direct ? a.o : block_output(a, b)));
  });
  if (blocks.empty()) return leave(a);
  if (direct) return attend_direct(a, blocks.front());
  with_state(a, [&](const AttendArgs& wide) { attend_merged(wide, blocks, share.rest); });
}

void Engine::leave(const AttendArgs& a) {
  if (fallback().rounds_results()) return fallback().attend(a);
  with_state(a, [&](const AttendArgs& wide) { fallback().attend(wide); });
}

void Engine::attend_block(const AttendArgs& a, const Planned& p, const View& o, const View& stats) {
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  GraphMemory m;
  m.q = a.q.at(0, p.block.q_rows.begin, heads.begin);
  m.k = a.k.at(0, p.block.k_rows.begin, kv.begin);
  m.v = a.v.at(0, p.block.k_rows.begin, kv.begin);
  m.o = o.at(0, 0, heads.begin);
  m.stats = stats.data;
  p.graph->run(m, workspace_->data(), memory_.stream());
  a.scope.progress();
}

void Engine::attend_direct(const AttendArgs& a, const Planned& p) {
  const Range heads = a.scope.query_heads;
  View stats = block_stats(a, p.block);
  const bool as_cudnn = a.lse.row_stride == 1 && a.lse.head_stride == a.q.rows &&
                        (a.q.batch == 1 || a.lse.batch_stride == a.q.rows * heads.size());
  if (as_cudnn) {
    stats.data = a.lse.at(0, 0, heads.begin);
    return attend_block(a, p, a.o, stats);
  }
  block_scratch_.begin();
  block_scratch_.want(stats);
  block_scratch_.reserve();
  attend_block(a, p, a.o, stats);
  const ViewRegion all{{0, a.q.rows}, heads};
  memory_.copy_region(stats, all, a.lse, all, WriteMode::overwrite);
}

void Engine::attend_merged(const AttendArgs& a, const std::vector<Planned>& blocks,
                           const std::vector<schedule::Slice>& rest) {
  // A first block that covers all rows writes the state; there is nothing to fill or to read.
  const bool covers = blocks.front().block.q_rows == Range{0, a.q.rows};
  if (a.overwrite && !covers) fill_empty(a, memory_);
  bool overwrite = a.overwrite && covers;
  for (const Planned& p : blocks) {
    View o = block_output(a, p.block), stats = block_stats(a, p.block);
    block_scratch_.begin();
    block_scratch_.want(o);
    block_scratch_.want(stats);
    block_scratch_.reserve();
    attend_block(a, p, o, stats);
    cuda::launch_merge(
        {o, stats, a.o, a.lse, p.block.q_rows, a.scope.query_heads, overwrite, overwrite ? a.sink : nullptr},
        memory_.stream());
    overwrite = false;
  }
  if (rest.empty()) return;
  AttendArgs left = a;
  left.scope.slices = keep(rest);
  left.scope.slice_count = static_cast<i64>(rest.size());
  left.overwrite = false;
  left.sink = nullptr;
  fallback().attend(left);
}

}  // namespace usp::kernels::cudnn
