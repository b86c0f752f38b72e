// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "engine.hpp"

#include "usp/base/error.hpp"

#include <optional>

namespace usp::kernels::cudnn {
namespace {

[[nodiscard]] schedule::CallTraits traits_of(const AttendGradArgs& a, const Engine& engine) {
  schedule::CallTraits call = cuda::call_traits(a, engine.compute_major());
  call.backward = true;
  call.deterministic = engine.deterministic();
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

[[nodiscard]] GraphKey key_of(const AttendGradArgs& a, const schedule::BandBlock& b, bool direct) {
  const Shapes s = shapes_of(a, b);
  GraphKey key = block_key(a, b, Direction::backward);
  key.o = strides_of(a.o);
  key.d_o = strides_of(a.d_o);
  key.dq = strides_of(direct ? a.dq : s.dq);
  key.dk = strides_of(direct ? a.dk : s.dk);
  key.dv_out = strides_of(direct ? a.dv : s.dv);
  return key;
}

[[nodiscard]] Range dk_rows(const schedule::BandBlock& b) {
  return {b.k_rows.begin + b.dk_shift, b.k_rows.end + b.dk_shift};
}

[[nodiscard]] bool rows_aligned(const AttendGradArgs& a) {
  return aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.d_o) &&
         (a.o.data == nullptr || aligned(a.o));
}

[[nodiscard]] bool is_direct(const AttendGradArgs& a, const Division& d) {
  const DType io = a.q.type;
  if (!a.overwrite || !d.rest.empty() || d.blocks.size() != 1) return false;
  const schedule::BandBlock& b = d.blocks.front().block;
  return b.q_rows == Range{0, a.q.rows} && dk_rows(b) == Range{0, a.dk.rows} && a.dq.type == io &&
         a.dk.type == io && a.dv.type == io && aligned(a.dq) && aligned(a.dk) && aligned(a.dv);
}

/// One block writes the gradients (direct), blocks are added up and the fallback adds what is left, or the
/// fallback takes all.
class BackwardStep final : public PreparedAttendGrad {
 public:
  BackwardStep(Engine& engine, const AttendGradArgs& given) : PreparedAttendGrad(given), engine_(engine) {
    if (given.scope.query_heads.empty()) return;
    expects(given.q.type == DType::bf16 || given.q.type == DType::fp16,
            "cuDNN's attention takes bf16 and fp16");
    Division division = engine.divide(given.scope, traits_of(given, engine), rows_aligned(given));
    const AttendGradArgs a = division.blocks.empty() ? given : begin_inputs(given);
    direct_ = is_direct(a, division);
    engine.find_graphs(division, a.scope,
                       [&](const schedule::BandBlock& b) { return key_of(a, b, direct_); });
    departures_ = std::move(division.departures);
    if (division.blocks.empty()) {
      prepare_fallback(given);
      return;
    }
    for (Planned& p : division.blocks) add_block(a, std::move(p));
    if (direct_) return;
    const AttendGradArgs sums = begin_sums(a);
    rest_count_ = static_cast<i64>(division.rest.size());
    if (rest_count_ == 0) return;
    begin_delta(a);
    fallback_ = engine.fallback().kernel().prepare(with_delta(rest_of(sums, division.rest.data())));
  }

 private:
  struct Block {
    Planned planned;
    ScratchView dq, dk, dv, stats;
  };
  struct BlockGrads {
    View dq, dk, dv;
  };

  void add_block(const AttendGradArgs& a, Planned planned) {
    const Shapes s = shapes_of(a, planned.block);
    ScratchLayout layout;
    Block block;
    if (!direct_) block.dq = layout.add(s.dq), block.dk = layout.add(s.dk), block.dv = layout.add(s.dv);
    block.stats = layout.add(s.stats);
    engine_.scratch().block->reserve(layout.bytes());
    block.planned = std::move(planned);
    blocks_.push_back(std::move(block));
  }

  void prepare_fallback(const AttendGradArgs& a) {
    begin_delta(a);
    AttentionKernel& kernel = engine_.fallback().kernel();
    fallback_ = kernel.prepare(with_delta(kernel.rounds_results() ? a : begin_sums(a)));
  }

  /// cuDNN takes o and its gradient in the input type.
  [[nodiscard]] AttendGradArgs begin_inputs(const AttendGradArgs& a) {
    const View shape(nullptr, a.q.type, a.q.batch, a.q.rows, a.scope.query_heads, a.v.width);
    ScratchLayout layout;
    if (a.o.type != a.q.type) o_ = layout.add(shape);
    if (a.d_o.type != a.q.type) d_o_ = layout.add(shape);
    engine_.scratch().input->reserve(layout.bytes());
    return with_inputs(a);
  }
  [[nodiscard]] AttendGradArgs with_inputs(const AttendGradArgs& a) const {
    AttendGradArgs in = a;
    if (o_) in.o = o_->in(*engine_.scratch().input);
    if (d_o_) in.d_o = d_o_->in(*engine_.scratch().input);
    return in;
  }
  void convert_inputs(const AttendGradArgs& a) const {
    const ViewRegion all{{0, a.q.rows}, a.scope.query_heads};
    const Arena& arena = *engine_.scratch().input;
    if (o_) engine_.memory().copy_region(a.o, all, o_->in(arena), all, WriteMode::overwrite);
    if (d_o_) engine_.memory().copy_region(a.d_o, all, d_o_->in(arena), all, WriteMode::overwrite);
  }

  /// The call with fp32 gradients: the given ones, or scratch that is rounded into them.
  [[nodiscard]] AttendGradArgs begin_sums(const AttendGradArgs& a) {
    if (a.dq.type != DType::fp32 || a.dk.type != DType::fp32 || a.dv.type != DType::fp32) {
      const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
      ScratchLayout layout;
      sums_.emplace();
      sums_->dq = layout.add(View(nullptr, DType::fp32, a.q.batch, a.dq.rows, heads, a.dq.width));
      sums_->dk = layout.add(View(nullptr, DType::fp32, a.q.batch, a.dk.rows, kv, a.dk.width));
      sums_->dv = layout.add(View(nullptr, DType::fp32, a.q.batch, a.dv.rows, kv, a.dv.width));
      engine_.scratch().state->reserve(layout.bytes());
    }
    return with_sums(a);
  }
  [[nodiscard]] AttendGradArgs with_sums(const AttendGradArgs& a) const {
    AttendGradArgs wide = a;
    if (!sums_) return wide;
    const Arena& arena = *engine_.scratch().state;
    wide.dq = sums_->dq.in(arena), wide.dk = sums_->dk.in(arena), wide.dv = sums_->dv.in(arena);
    return wide;
  }
  void round_sums(const AttendGradArgs& wide, const AttendGradArgs& a) const {
    if (!sums_) return;
    const auto round = [&](const View& from, const View& to, Range some) {
      engine_.memory().copy_region(from, {{0, to.rows}, some}, to, {{0, to.rows}, some},
                                   WriteMode::overwrite);
    };
    round(wide.dq, a.dq, a.scope.query_heads);
    round(wide.dk, a.dk, a.scope.kv_heads());
    round(wide.dv, a.dv, a.scope.kv_heads());
  }

  /// The fallback needs a delta.
  void begin_delta(const AttendGradArgs& a) {
    if (a.delta.data != nullptr) return;
    ScratchLayout layout;
    delta_ = layout.add(View(nullptr, DType::fp32, a.q.batch, a.q.rows, a.scope.query_heads, 1));
    engine_.scratch().delta->reserve(layout.bytes());
  }
  [[nodiscard]] AttendGradArgs with_delta(const AttendGradArgs& a) const {
    AttendGradArgs with = a;
    if (delta_) with.delta = delta_->in(*engine_.scratch().delta);
    return with;
  }
  void run_fallback(const AttendGradArgs& a) {
    const AttendGradArgs with = with_delta(a);
    if (delta_)
      cuda::launch_delta({a.d_o, a.o, a.lse, delta_->in(*engine_.scratch().delta), a.scope.query_heads},
                         engine_.memory().stream());
    fallback_->run(with);
  }

  /// What the fallback adds to the blocks' sums; `slices` for prepare alone.
  [[nodiscard]] AttendGradArgs rest_of(const AttendGradArgs& sums, const schedule::Slice* slices) const {
    AttendGradArgs rest = sums;
    rest.scope.slices = slices;
    rest.scope.slice_count = rest_count_;
    rest.scope.use.reset();  // the plan names no other than this one
    rest.overwrite = rest.overwrite_dkv = false;
    return rest;
  }

  void enqueue(const AttendGradArgs& given) override {
    if (given.scope.query_heads.empty()) return;
    const device::DeviceScope scope(engine_.device());
    engine_.fallback().count(Pass::backward, departures_);
    if (blocks_.empty()) {
      const AttendGradArgs wide = with_sums(given);
      run_fallback(wide);
      return round_sums(wide, given);
    }
    convert_inputs(given);
    const AttendGradArgs a = with_inputs(given);
    if (direct_) {
      const Range kv = a.scope.kv_heads();
      return grad_block(a, blocks_.front(),
                        {heads_of(a.dq, a.scope.query_heads), heads_of(a.dk, kv), heads_of(a.dv, kv)});
    }
    const AttendGradArgs wide = with_sums(a);
    add_blocks(wide);
    round_sums(wide, a);
  }

  void grad_block(const AttendGradArgs& a, const Block& b, const BlockGrads& to) {
    const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
    const schedule::BandBlock& block = b.planned.block;
    const View stats = b.stats.in(*engine_.scratch().block);
    cuda::launch_pack_lse(a.lse, block.q_rows, heads, reinterpret_cast<float*>(stats.data),
                          engine_.memory().stream());
    GraphMemory m;
    m.q = a.q.at(0, block.q_rows.begin, heads.begin);
    m.k = a.k.at(0, block.k_rows.begin, kv.begin);
    m.v = a.v.at(0, block.k_rows.begin, kv.begin);
    m.d_o = a.d_o.at(0, block.q_rows.begin, heads.begin);
    m.o = const_cast<std::byte*>(a.o.at(0, block.q_rows.begin, heads.begin));
    m.stats = stats.data;
    m.dq = to.dq.data;
    m.dk = to.dk.data;
    m.dv = to.dv.data;
    engine_.run(b.planned, m);
    a.scope.progress();
  }

  void add_blocks(const AttendGradArgs& a) {
    const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
    Memory& memory = engine_.memory();
    // A first block that covers all rows writes them; the others add.
    const schedule::BandBlock& front = blocks_.front().planned.block;
    const bool covers_q = a.overwrite && front.q_rows == Range{0, a.dq.rows};
    const bool covers_k = a.overwrites_dkv() && dk_rows(front) == Range{0, a.dk.rows};
    if (a.overwrite && !covers_q) memory.fill(heads_of(a.dq, heads), 0);
    if (a.overwrites_dkv() && !covers_k) {
      memory.fill(heads_of(a.dk, kv), 0);
      memory.fill(heads_of(a.dv, kv), 0);
    }
    const Arena& arena = *engine_.scratch().block;
    bool first = true;
    for (const Block& b : blocks_) {
      const schedule::BandBlock& block = b.planned.block;
      const BlockGrads grads{b.dq.in(arena), b.dk.in(arena), b.dv.in(arena)};
      grad_block(a, b, grads);
      const WriteMode q_mode = first && covers_q ? WriteMode::overwrite : WriteMode::accumulate;
      const WriteMode k_mode = first && covers_k ? WriteMode::overwrite : WriteMode::accumulate;
      cuda::launch_accumulate(grads.dq, a.dq, block.q_rows, heads, q_mode, memory.stream());
      cuda::launch_accumulate(grads.dk, a.dk, dk_rows(block), kv, k_mode, memory.stream());
      cuda::launch_accumulate(grads.dv, a.dv, dk_rows(block), kv, k_mode, memory.stream());
      first = false;
    }
    if (fallback_ != nullptr) run_fallback(rest_of(a, nullptr));
  }

  struct Sums {
    ScratchView dq, dk, dv;
  };

  Engine& engine_;
  std::vector<schedule::UnsupportedReason> departures_;
  bool direct_ = false;
  std::vector<Block> blocks_;           ///< empty: the fallback takes all
  std::optional<ScratchView> o_, d_o_;  ///< in the input type
  std::optional<Sums> sums_;            ///< gradients before they are rounded
  std::optional<ScratchView> delta_;
  std::unique_ptr<PreparedAttendGrad> fallback_;
  i64 rest_count_ = 0;
};

}  // namespace

std::unique_ptr<PreparedAttendGrad> make_backward_step(Engine& engine, const AttendGradArgs& args) {
  return std::make_unique<BackwardStep>(engine, args);
}

}  // namespace usp::kernels::cudnn
