// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "engine.hpp"

#include "usp/base/error.hpp"

#include <limits>
#include <optional>

namespace usp::kernels::cudnn {
namespace {

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

[[nodiscard]] GraphKey key_of(const AttendArgs& a, const schedule::BandBlock& b, bool direct) {
  GraphKey key = block_key(a, b, Direction::forward);
  key.o = strides_of(direct ? a.o : block_output(a, b));
  return key;
}

/// The caller's lse has the strides of cuDNN's statistics.
[[nodiscard]] bool is_stats(const AttendArgs& a) {
  return a.lse.row_stride == 1 && a.lse.head_stride == a.q.rows &&
         (a.q.batch == 1 || a.lse.batch_stride == a.q.rows * a.scope.query_heads.size());
}

void fill_empty(const AttendArgs& a, Memory& memory) {
  const Range heads = a.scope.query_heads;
  memory.fill(heads_of(a.o, heads), 0);
  if (a.sink == nullptr)
    memory.fill(heads_of(a.lse, heads), -std::numeric_limits<double>::infinity());
  else
    memory.fill_heads(heads_of(a.lse, heads), a.sink);
}

/// One block writes the result (direct), blocks are merged into the state and the fallback adds what is left,
/// or the fallback takes all.
class ForwardStep final : public PreparedAttend {
 public:
  ForwardStep(Engine& engine, const AttendArgs& a) : PreparedAttend(a), engine_(engine) {
    if (a.scope.query_heads.empty()) return;
    expects(a.q.type == DType::bf16 || a.q.type == DType::fp16, "cuDNN's attention takes bf16 and fp16");
    Division division = engine.divide(a.scope, cuda::call_traits(a, engine.compute_major()),
                                      aligned(a.q) && aligned(a.k) && aligned(a.v));
    direct_ = a.overwrite && a.sink == nullptr && a.o.type == a.q.type && division.rest.empty() &&
              division.blocks.size() == 1 && division.blocks.front().block.q_rows == Range{0, a.q.rows} &&
              aligned(a.o);
    engine.find_graphs(division, a.scope,
                       [&](const schedule::BandBlock& b) { return key_of(a, b, direct_); });
    departures_ = std::move(division.departures);
    if (division.blocks.empty()) {
      prepare_fallback(a);
      return;
    }
    for (Planned& p : division.blocks) add_block(a, std::move(p));
    if (direct_) return;
    const AttendArgs state = begin_state(a);
    rest_count_ = static_cast<i64>(division.rest.size());
    if (rest_count_ > 0) fallback_ = engine.fallback().kernel().prepare(rest_of(state, division.rest.data()));
  }

 private:
  struct Block {
    Planned planned;
    ScratchView o, stats;
  };

  void add_block(const AttendArgs& a, Planned planned) {
    ScratchLayout layout;
    Block block;
    if (!direct_) block.o = layout.add(block_output(a, planned.block));
    if (direct_ && is_stats(a))
      block.stats.shape = block_stats(a, planned.block);
    else
      block.stats = layout.add(block_stats(a, planned.block));
    engine_.scratch().block->reserve(layout.bytes());
    block.planned = std::move(planned);
    blocks_.push_back(std::move(block));
  }

  void prepare_fallback(const AttendArgs& a) {
    AttentionKernel& kernel = engine_.fallback().kernel();
    fallback_ = kernel.prepare(kernel.rounds_results() ? a : begin_state(a));
  }

  /// The call with an fp32 o: the given one, or scratch that is rounded into it.
  [[nodiscard]] AttendArgs begin_state(const AttendArgs& a) {
    if (a.o.type != DType::fp32) {
      ScratchLayout layout;
      state_ = layout.add(View(nullptr, DType::fp32, a.o.batch, a.o.rows, a.scope.query_heads, a.o.width));
      engine_.scratch().state->reserve(layout.bytes());
    }
    return with_state(a);
  }
  [[nodiscard]] AttendArgs with_state(const AttendArgs& a) const {
    AttendArgs wide = a;
    if (state_) wide.o = state_->in(*engine_.scratch().state);
    return wide;
  }
  void round_state(const AttendArgs& wide, const AttendArgs& a) const {
    const ViewRegion all{{0, a.o.rows}, a.scope.query_heads};
    if (state_) engine_.memory().copy_region(wide.o, all, a.o, all, WriteMode::overwrite);
  }

  /// What the fallback adds to the merged blocks; `slices` for prepare alone.
  [[nodiscard]] AttendArgs rest_of(const AttendArgs& state, const schedule::Slice* slices) const {
    AttendArgs rest = state;
    rest.scope.slices = slices;
    rest.scope.slice_count = rest_count_;
    rest.scope.use.reset();  // the plan names no other than this one
    rest.overwrite = false;
    rest.sink = nullptr;
    return rest;
  }

  void enqueue(const AttendArgs& a) override {
    if (a.scope.query_heads.empty()) return;
    const device::DeviceScope scope(engine_.device());
    engine_.fallback().count(Pass::forward, departures_);
    if (direct_ && !blocks_.empty()) return attend_direct(a);
    const AttendArgs wide = with_state(a);
    if (blocks_.empty())
      fallback_->run(wide);
    else
      attend_merged(wide);
    round_state(wide, a);
  }

  void attend_block(const AttendArgs& a, const Planned& p, const View& o, const View& stats) {
    const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
    GraphMemory m;
    m.q = a.q.at(0, p.block.q_rows.begin, heads.begin);
    m.k = a.k.at(0, p.block.k_rows.begin, kv.begin);
    m.v = a.v.at(0, p.block.k_rows.begin, kv.begin);
    m.o = o.at(0, 0, heads.begin);
    m.stats = stats.data;
    engine_.run(p, m);
    a.scope.progress();
  }

  void attend_direct(const AttendArgs& a) {
    const Range heads = a.scope.query_heads;
    const Block& b = blocks_.front();
    if (is_stats(a)) {
      View stats = b.stats.shape;
      stats.data = a.lse.at(0, 0, heads.begin);
      return attend_block(a, b.planned, a.o, stats);
    }
    const View stats = b.stats.in(*engine_.scratch().block);
    attend_block(a, b.planned, a.o, stats);
    const ViewRegion all{{0, a.q.rows}, heads};
    engine_.memory().copy_region(stats, all, a.lse, all, WriteMode::overwrite);
  }

  void attend_merged(const AttendArgs& a) {
    // A first block that covers all rows writes the state; there is nothing to fill or to read.
    const bool covers = blocks_.front().planned.block.q_rows == Range{0, a.q.rows};
    if (a.overwrite && !covers) fill_empty(a, engine_.memory());
    bool overwrite = a.overwrite && covers;
    for (const Block& b : blocks_) {
      const View o = b.o.in(*engine_.scratch().block), stats = b.stats.in(*engine_.scratch().block);
      attend_block(a, b.planned, o, stats);
      cuda::launch_merge({o, stats, a.o, a.lse, b.planned.block.q_rows, a.scope.query_heads, overwrite,
                          overwrite ? a.sink : nullptr},
                         engine_.memory().stream());
      overwrite = false;
    }
    if (fallback_ != nullptr) fallback_->run(rest_of(a, nullptr));
  }

  Engine& engine_;
  std::vector<schedule::UnsupportedReason> departures_;
  bool direct_ = false;
  std::vector<Block> blocks_;         ///< empty: the fallback takes all
  std::optional<ScratchView> state_;  ///< o before it is rounded
  std::unique_ptr<PreparedAttend> fallback_;
  i64 rest_count_ = 0;
};

}  // namespace

std::unique_ptr<PreparedAttend> make_forward_step(Engine& engine, const AttendArgs& args) {
  return std::make_unique<ForwardStep>(engine, args);
}

}  // namespace usp::kernels::cudnn
