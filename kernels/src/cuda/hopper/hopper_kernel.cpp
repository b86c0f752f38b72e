// SPDX-License-Identifier: Apache-2.0
#include "hopper_kernel.hpp"

#include "../state/state.hpp"
#include "../tiles/resources.hpp"
#include "dispatch.hpp"
#include "tensor_map.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace usp::kernels::hopper {
namespace {

using schedule::UnsupportedReason;

/// What the steps of a kernel share.
struct Engine {
  Engine(Memory& memory, const CudaKernelOptions& options, cuda::MakeFallback make)
      : resources(memory, options), fallback(std::move(make)), claims(memory.make_arena()) {
    const device::DeviceInfo info = device::device_info(memory.device());
    compute_major = info.compute_major, multiprocessors = info.multiprocessors;
    claims->reserve(static_cast<i64>(sizeof(int)));
  }

  Resources resources;
  cuda::Fallback fallback;
  std::unique_ptr<Arena> claims;  ///< the number of the next claim
  int compute_major = 0, multiprocessors = 0;
};

/// Whether the backend computes a call, by its plan and its record; else what departs from the plan.
struct Decision {
  bool own = false;
  std::vector<UnsupportedReason> departures;
};

template <class Args>
[[nodiscard]] Decision decide(const Args& a, const schedule::CallTraits& call) {
  if (a.scope.use && *a.scope.use != Backend::hopper) return {};
  const UnsupportedReason why = schedule::unsupported_reason(hopper_traits.takes, call);
  if (why == UnsupportedReason::none) return {true, {}};
  if (a.scope.use) return {false, {why}};
  return {};
}

template <class Args>
[[nodiscard]] bool is_work(const Args& a) {
  return !a.scope.query_heads.empty() && a.q.batch != 0;
}

[[nodiscard]] int steps_of(const QuerySegment& s) {
  return (s.end - s.begin + step_rows - 1) / step_rows;
}

/// Counts the tiles of `rows` rows that each tile meets.
template <class Segment>
void count_streamed_tiles(TileTable<Segment>& table, int rows) {
  for (TileEntry& tile : table.tiles)
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& s = table.segments[static_cast<std::size_t>(i)];
      tile.streamed_tiles += (s.end - s.begin + rows - 1) / rows;
    }
}

/// Tiles of keys that see the same queries begin at different ones, since additions to one row of dQ at one
/// time wait for each other: a segment that reaches over a tile's own rows is cut there, and its first part
/// comes last.
[[nodiscard]] TileTable<QuerySegment> staggered(TileTable<QuerySegment> table) {
  std::vector<QuerySegment> segments;
  for (TileEntry& tile : table.tiles) {
    const auto first = static_cast<int>(segments.size());
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      QuerySegment s = table.segments[static_cast<std::size_t>(i)], before = s;
      const int cut = s.begin + std::max(tile.row - s.begin, 0) / step_rows % steps_of(s) * step_rows;
      s.begin = before.end = cut;
      segments.push_back(s);
      if (before.begin < before.end) segments.push_back(before);
    }
    tile.segment_begin = first, tile.segment_end = static_cast<int>(segments.size());
  }
  table.segments = std::move(segments);
  return table;
}

/// Heads of which each brings `bytes` to L2, so many that they fill a section together.
[[nodiscard]] int section_heads(i64 section, i64 bytes, i64 heads) {
  return static_cast<int>(std::clamp<i64>(section / std::max<i64>(bytes, 1), 1, heads));
}

template <class Args>
void make_room(Resources& r, const Args& a) {
  r.make_room(a.q, a.q.type, a.scope.query_heads, Role::q);
  r.make_room(a.k, a.q.type, a.scope.kv_heads(), Role::k);
  r.make_room(a.v, a.q.type, a.scope.kv_heads(), Role::v);
}

/// What the launches of both passes share.
template <class Params, class Args, class Table>
void describe(Params& p, Engine& engine, const Args& a, const Table& table, int q_box, int key_box) {
  Resources& r = engine.resources;
  const ConstView q = r.readable(a.q, a.q.type, a.scope.query_heads, Role::q);
  const ConstView k = r.readable(a.k, a.q.type, a.scope.kv_heads(), Role::k);
  const ConstView v = r.readable(a.v, a.q.type, a.scope.kv_heads(), Role::v);
  p.q = row_boxes(q, q_box), p.k = row_boxes(k, key_box), p.v = row_boxes(v, key_box);
  p.q_head_begin = static_cast<int>(q.heads.begin);
  p.k_head_begin = static_cast<int>(k.heads.begin), p.v_head_begin = static_cast<int>(v.heads.begin);
  p.tiles = table.tiles(), p.segments = table.segments(), p.slices = table.slices();
  p.next_claim = reinterpret_cast<int*>(engine.claims->data());
  p.tile_count = table.tile_count(a.overwrite);
  p.claim_count = p.tile_count * p.heads_of_all;
  p.head_begin = static_cast<int>(a.scope.query_heads.begin);
  p.group = a.scope.group;
  p.dv = static_cast<int>(a.v.width);
  p.scale_log2 = static_cast<float>(a.scope.terms->scale * 1.4426950408889634);
  p.overwrite = a.overwrite;
  p.lse = strided(a.lse);
  p.device = engine.resources.device(), p.multiprocessors = engine.multiprocessors;
  engine.resources.memory().set_bytes(engine.claims->data(), 0, engine.claims->bytes());
}

/// A step of the kernel itself.
class ForwardStep final : public PreparedAttend {
 public:
  ForwardStep(Engine& engine, const AttendArgs& a) : PreparedAttend(a), engine_(engine) {
    if (!is_work(a)) return;
    tile_ = forward_tile(a.q.width, a.v.width);
    const SliceList slices{a.scope.slices, a.scope.slice_count};
    TileTable<KeySegment> table = tiles_of_queries(slices, a.q.rows, query_rows);
    count_streamed_tiles(table, tile_.keys);
    table_.emplace(engine.resources.tables(), slices, table);
    make_room(engine.resources, a);
  }

 private:
  void enqueue(const AttendArgs& a) override {
    if (!table_ || table_->tile_count(a.overwrite) == 0) return;
    const device::DeviceScope on(engine_.resources.device());
    ForwardParams p;
    p.heads = static_cast<int>(a.scope.query_heads.size());
    p.heads_of_all = static_cast<int>(a.scope.query_heads.size() * a.q.batch);
    const i64 kv_bytes = a.k.rows * (a.k.width + a.v.width) * bytes_of(a.k.type);
    p.section_heads = section_heads(section_bytes, kv_bytes / a.scope.group, p.heads_of_all);
    p.q_rows = static_cast<int>(a.q.rows);
    p.sink = a.sink;
    p.o = strided(a.o);
    p.o_pieces = divides(a.o, 16, 16 / bytes_of(a.o.type));
    describe(p, engine_, a, *table_, query_rows, tile_.keys);
    forward(p, tile_, a.q.type, engine_.resources.memory().stream());
    a.scope.progress();
  }

  Engine& engine_;
  ForwardTile tile_;
  std::optional<DeviceTable<KeySegment>> table_;  ///< empty: no work
};

class BackwardStep final : public PreparedAttendGrad {
 public:
  BackwardStep(Engine& engine, const AttendGradArgs& a) : PreparedAttendGrad(a), engine_(engine) {
    if (!is_work(a)) return;
    const SliceList slices{a.scope.slices, a.scope.slice_count};
    TileTable<QuerySegment> table = staggered(tiles_of_keys(slices, a.dk.rows, key_rows));
    count_streamed_tiles(table, step_rows);
    Resources& r = engine.resources;
    table_.emplace(r.tables(), slices, table);
    make_room(r, a);
    r.make_room(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
    direct_ = a.dq.type == DType::fp32 && divides(a.dq, 16, 4);
    if (!direct_) r.reserve(Role::dq, sum_of(a).elements() * bytes_of(DType::fp32));
  }

 private:
  void enqueue(const AttendGradArgs& a) override {
    if (!table_) return;
    const device::DeviceScope on(engine_.resources.device());
    Memory& memory = engine_.resources.memory();
    const ViewRegion all{{0, a.dq.rows}, a.scope.query_heads};
    View sum = a.dq;
    if (!direct_) sum = sum_of(a), sum.data = engine_.resources.scratch(Role::dq);
    if (!direct_ || a.overwrite) memory.fill(part_of(sum, a.scope.query_heads), 0);
    if (table_->tile_count(a.overwrite) != 0) add_grads(a, sum);
    if (!direct_)
      memory.copy_region(sum, all, a.dq, all, a.overwrite ? WriteMode::overwrite : WriteMode::accumulate);
    a.scope.progress();
  }

  /// The sum of dq that scratch holds.
  [[nodiscard]] static View sum_of(const AttendGradArgs& a) {
    return {nullptr, DType::fp32, a.q.batch, a.q.rows, a.scope.query_heads, a.dq.width};
  }
  [[nodiscard]] static View part_of(View view, Range heads) {
    view.data = view.at(0, 0, heads.begin), view.heads = heads;
    return view;
  }

  void add_grads(const AttendGradArgs& a, const View& dq) {
    const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
    const ConstView d_o = engine_.resources.readable(a.d_o, a.q.type, heads, Role::d_o);
    BackwardParams p;
    p.d_o = row_boxes(d_o, step_rows), p.dq = sum_boxes(dq, step_rows);
    p.d_o_head_begin = static_cast<int>(d_o.heads.begin), p.dq_head_begin = static_cast<int>(dq.heads.begin);
    p.head_end = static_cast<int>(heads.end);
    p.kv_begin = static_cast<int>(kv.begin), p.kv_heads = static_cast<int>(kv.size());
    p.heads_of_all = static_cast<int>(kv.size() * a.q.batch);
    const i64 query_bytes =
        a.q.rows * ((a.q.width + a.v.width) * bytes_of(a.q.type) + dq.width * bytes_of(dq.type));
    p.section_heads = section_heads(grad_section_bytes, query_bytes * a.scope.group, p.heads_of_all);
    p.dk_rows = static_cast<int>(a.dk.rows), p.dqk = static_cast<int>(a.q.width);
    p.scale = static_cast<float>(a.scope.terms->scale);
    p.delta = strided(a.delta), p.dk = strided(a.dk), p.dv_out = strided(a.dv);
    describe(p, engine_, a, *table_, step_rows, key_rows);
    backward(p, a.q.type, engine_.resources.memory().stream());
  }

  Engine& engine_;
  std::optional<DeviceTable<QuerySegment>> table_;  ///< empty: no work
  bool direct_ = false;                             ///< dq is summed in its own memory
};

/// A step of the fallback.
template <class Args, Pass pass>
class LeftStep final : public PreparedStep<Args> {
 public:
  LeftStep(Engine& engine, const Args& a, std::vector<UnsupportedReason> departures)
      : PreparedStep<Args>(a),
        engine_(engine),
        departures_(std::move(departures)),
        step_(engine.fallback.kernel().prepare(a)) {}

 private:
  void enqueue(const Args& a) override {
    engine_.fallback.count(pass, departures_);
    step_->run(a);
  }

  Engine& engine_;
  std::vector<UnsupportedReason> departures_;
  std::unique_ptr<PreparedStep<Args>> step_;
};

class HopperKernel final : public AttentionKernel {
 public:
  HopperKernel(Memory& memory, const CudaKernelOptions& options, cuda::MakeFallback fallback)
      : engine_(memory, options, std::move(fallback)) {}
  [[nodiscard]] const char* name() const override { return "hopper"; }
  [[nodiscard]] Memory& memory() override { return engine_.resources.memory(); }
  [[nodiscard]] bool rounds_results() const override { return hopper_traits.rounds_results; }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override { return engine_.fallback.counts(); }

  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope on(engine_.resources.device());
    Decision decision = decide(a, cuda::call_traits(a, engine_.compute_major));
    if (decision.own) return std::make_unique<ForwardStep>(engine_, a);
    return std::make_unique<LeftStep<AttendArgs, Pass::forward>>(engine_, a, std::move(decision.departures));
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope on(engine_.resources.device());
    schedule::CallTraits call = cuda::call_traits(a, engine_.compute_major);
    call.backward = true;
    call.deterministic = engine_.resources.deterministic();
    Decision decision = decide(a, call);
    if (decision.own) return std::make_unique<BackwardStep>(engine_, a);
    return std::make_unique<LeftStep<AttendGradArgs, Pass::backward>>(engine_, a,
                                                                      std::move(decision.departures));
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope on(engine_.resources.device());
    cuda::launch_delta(a, memory().stream());
  }

 private:
  Engine engine_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                             cuda::MakeFallback fallback) {
  return std::make_unique<HopperKernel>(memory, options, std::move(fallback));
}

}  // namespace usp::kernels::hopper

namespace usp::kernels {

std::unique_ptr<AttentionKernel> make_hopper_kernel(Memory& memory, const CudaKernelOptions& options) {
  return hopper::make_kernel(memory, options, [&memory, options] {
    return factory_of(fallback_of(Backend::hopper)).make(memory, options.deterministic);
  });
}

}  // namespace usp::kernels
