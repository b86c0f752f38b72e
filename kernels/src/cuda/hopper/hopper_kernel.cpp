// SPDX-License-Identifier: Apache-2.0
#include "hopper_kernel.hpp"

#include "../state/state.hpp"
#include "../tiles/resources.hpp"
#include "block_tiles.hpp"
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
    claims->reserve(static_cast<i64>((1 + max_blocks) * sizeof(int)));
  }

  Resources resources;
  cuda::Fallback fallback;
  std::unique_ptr<Arena> claims;  ///< the number of the next claim; by block, claims that have ended
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

/// Heads of which each brings `bytes` to L2, so many that they fill a section together; sections are even,
/// since the last one has to keep the GPU busy.
[[nodiscard]] int section_heads(i64 section, i64 bytes, i64 heads) {
  const i64 most = std::clamp<i64>(section / std::max<i64>(bytes, 1), 1, heads);
  const i64 sections = (heads + most - 1) / most;
  return static_cast<int>((heads + sections - 1) / sections);
}

/// A call for one block is a list of one.
template <class Args>
[[nodiscard]] BlockList<Args> as_list(const Args& a) {
  return {&a, 1};
}
template <class Args>
[[nodiscard]] BlockList<Args> as_list(const BlockList<Args>& list) {
  return list;
}

template <class Args>
void make_room(Resources& r, const BlockList<Args>& list) {
  const Args& a = list.front();
  r.make_room(a.q, a.q.type, a.scope.query_heads, Role::q);
  if (list.count > 1) return;  // blocks of lists are read in place
  r.make_room(a.k, a.q.type, a.scope.kv_heads(), Role::k);
  r.make_room(a.v, a.q.type, a.scope.kv_heads(), Role::v);
}

template <class V>
[[nodiscard]] V part_of(V view, Range heads) {
  view.data = view.at(0, 0, heads.begin), view.heads = heads;
  return view;
}

/// Rows of the boxes that a launch loads, and heads of those of queries.
struct BoxRows {
  int queries, keys, query_heads = 1;
};

/// With a softcap, what the kernels scale is tanh(score / softcap).
void describe_scale(CommonParams& p, const ScoreTerms& terms) {
  constexpr double log2_of_e = 1.4426950408889634;
  const bool capped = terms.softcap != 0;
  p.scale_log2 = static_cast<float>(log2_of_e * (capped ? terms.softcap : terms.scale));
  if (capped) p.softcap_factor = static_cast<float>(2 * log2_of_e * terms.scale / terms.softcap);
}

template <class Args>
void describe_gates(CommonParams& p, const BlockList<Args>& list) {
  if (list.gates == nullptr) return;
  p.watch = list.watch;
  for (i64 i = 0; i < list.count; ++i) {
    p.gates[i] = list.gates[i];
    if (p.gates[i].flag != nullptr) p.awaited |= std::uint32_t{1} << i;
  }
}

/// A table of tiles in the device's memory, and the runs in which they are claimed.
template <class Segment>
struct Tiles {
  Tiles(Resources& r, const SliceList& slices, const TileTable<Segment>& of, ClaimRuns claim_runs)
      : table(r.tables(), slices, of), runs(std::move(claim_runs)) {}

  DeviceTable<Segment> table;
  ClaimRuns runs;
};

/// What the launches of both passes share.
template <class Params, class Args, class Segment>
void describe(Params& p, Engine& engine, const BlockList<Args>& list, const Tiles<Segment>& tiles,
              bool all_tiles, BoxRows boxes) {
  Resources& r = engine.resources;
  const Args& a = list.front();
  const Range kv_heads = a.scope.kv_heads();
  const ConstView q = r.readable(a.q, a.q.type, a.scope.query_heads, Role::q);
  p.q = row_boxes(q, boxes.queries, boxes.query_heads);
  for (i64 i = 0; i < list.count; ++i) {
    const Args& block = list.blocks[i];
    p.k[i] = row_boxes(part_of(r.readable(block.k, a.q.type, kv_heads, Role::k), kv_heads), boxes.keys);
    p.v[i] = row_boxes(part_of(r.readable(block.v, a.q.type, kv_heads, Role::v), kv_heads), boxes.keys);
  }
  p.q_head_begin = static_cast<int>(q.heads.begin), p.kv_begin = static_cast<int>(kv_heads.begin);
  const DeviceTable<Segment>& table = tiles.table;
  p.tiles = table.tiles(), p.segments = table.segments(), p.slices = table.slices();
  p.tile_count = table.tile_count(all_tiles);
  const std::vector<int>& run_ends = tiles.runs.of(all_tiles);
  std::copy(run_ends.begin(), run_ends.end(), p.run_ends);
  describe_gates(p, list);
  p.next_claim = reinterpret_cast<int*>(engine.claims->data());
  p.claim_count = p.tile_count * p.heads_of_all;
  p.head_begin = static_cast<int>(a.scope.query_heads.begin);
  p.group = a.scope.group;
  p.dv = static_cast<int>(a.v.width);
  describe_scale(p, *a.scope.terms);
  p.overwrite = a.overwrite;
  p.lse = strided(a.lse);
  p.device = engine.resources.device(), p.multiprocessors = engine.multiprocessors;
  engine.resources.memory().set_bytes(engine.claims->data(), 0, engine.claims->bytes());
}

/// Of tiles of queries, by which tiles of so many keys stream; `bundle_log2` is set.
template <class Params, class Args>
void describe_query_tiles(Params& p, Engine& engine, const BlockList<Args>& list,
                          const Tiles<KeySegment>& tiles, int key_rows) {
  const Args& a = list.front();
  p.heads = static_cast<int>(a.scope.query_heads.size() >> p.bundle_log2);
  p.heads_of_all = static_cast<int>(p.heads * a.q.batch);
  i64 keys = 0;
  for (const Args& block : list) keys += block.k.rows;
  const i64 kv_bytes = keys * (a.k.width + a.v.width) * bytes_of(a.k.type);
  p.section_heads = section_heads(section_bytes, (kv_bytes << p.bundle_log2) / a.scope.group, p.heads_of_all);
  describe(p, engine, list, tiles, a.overwrite, {query_rows >> p.bundle_log2, key_rows, 1 << p.bundle_log2});
}

/// Whether rows are whole aligned pieces of 16 bytes.
[[nodiscard]] bool in_pieces(const View& view) {
  return divides(view, 16, 16 / bytes_of(view.type)) && view.width * bytes_of(view.type) % 16 == 0;
}

/// What the launches of backward read of the gradients' side.
template <class Params>
void describe_grads(Params& p, Engine& engine, const AttendGradArgs& a, int rows, int heads = 1) {
  const ConstView d_o = engine.resources.readable(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
  p.d_o = row_boxes(d_o, rows, heads);
  p.d_o_head_begin = static_cast<int>(d_o.heads.begin);
  p.dqk = static_cast<int>(a.q.width);
  p.scale = static_cast<float>(a.scope.terms->scale);
  p.delta = strided(a.delta);
}

/// A step of the kernel itself: `Given` is AttendArgs or a list of them.
template <class Given>
class ForwardStep final : public PreparedStep<Given> {
 public:
  ForwardStep(Engine& engine, const Given& given) : PreparedStep<Given>(given), engine_(engine) {
    const AttendBlocks list = as_list(given);
    const AttendArgs& a = list.front();
    if (!is_work(a)) return;
    tile_ = forward_tile(a.q.width, a.v.width, a.scope.terms->softcap != 0);
    const BlockSlices slices(list);
    const QueryTiles tiles =
        query_tiles(slices.list(), a.q.rows, {a.scope.query_heads, a.scope.group}, tile_.keys);
    bundle_log2_ = tiles.bundle_log2;
    tiles_.emplace(engine.resources, slices.list(), tiles.table, one_run(tiles.table));
    make_room(engine.resources, list);
  }

 private:
  void enqueue(const Given& given) override {
    const AttendBlocks list = as_list(given);
    const AttendArgs& a = list.front();
    if (!tiles_ || tiles_->table.tile_count(a.overwrite) == 0) return;
    const device::DeviceScope on(engine_.resources.device());
    ForwardParams p;
    p.bundle_log2 = bundle_log2_;
    p.sink = a.sink;
    p.o = strided(a.o);
    p.o_pieces = divides(a.o, 16, 16 / bytes_of(a.o.type));
    describe_query_tiles(p, engine_, list, *tiles_, tile_.keys);
    forward(p, tile_, a.q.type, engine_.resources.memory().stream());
    a.scope.progress();
  }

  Engine& engine_;
  ForwardTile tile_;
  int bundle_log2_ = 0;
  std::optional<Tiles<KeySegment>> tiles_;  ///< empty: no work
};

template <class Given>
class BackwardStep final : public PreparedStep<Given> {
 public:
  BackwardStep(Engine& engine, const Given& given) : PreparedStep<Given>(given), engine_(engine) {
    const AttendGradBlocks list = as_list(given);
    const AttendGradArgs& a = list.front();
    if (!is_work(a)) return;
    const BlockSlices slices(list);
    Resources& r = engine.resources;
    tile_ = grad_tile(a.q.width, a.v.width, a.scope.terms->softcap != 0);
    make_room(r, list);
    r.make_room(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
    // Heads that share a tile of queries make up for the scores that two launches compute twice.
    const bool two_launches = r.deterministic() || !tile_.adds_dq();
    if (two_launches || a.scope.group > 1) {
      const QueryTiles queries =
          query_tiles(slices.list(), a.q.rows, {a.scope.query_heads, a.scope.group}, tile_.keys);
      bundle_log2_ = queries.bundle_log2;
      if (two_launches || bundle_log2_ > 0)
        queries_.emplace(r, slices.list(), queries.table, one_run(queries.table));
    }
    const bool one_launch = !queries_;
    std::vector<GradRows> rows;
    for (const AttendGradArgs& block : list) rows.push_back({block.dk.rows, block.overwrites_dkv()});
    TileTable<QuerySegment> table = key_tiles(slices.list(), rows, tile_.key_tile(one_launch), a.scope.group);
    block_tiles_.resize(static_cast<std::size_t>(list.count));
    for (const TileEntry& tile : table.tiles) ++block_tiles_[static_cast<std::size_t>(tile.block)];
    const i64 claims = static_cast<i64>(table.busy) * a.scope.kv_heads().size() * a.q.batch;
    const bool by_block = list.gates != nullptr && claims >= ordered_claims * engine.multiprocessors;
    ClaimRuns runs = by_block ? order_by_block(table) : order_by_row(table);
    keys_.emplace(r, slices.list(), table, std::move(runs));
    if (!one_launch) return;
    direct_ = a.dq.type == DType::fp32 && divides(a.dq, 16, 4);
    if (!direct_) r.reserve(Role::dq, sum_of(a).elements() * bytes_of(DType::fp32));
  }

 private:
  void enqueue(const Given& given) override {
    const AttendGradBlocks list = as_list(given);
    for (i64 i = 0; i < list.count; ++i)
      if (tiles_of(i) == 0) engine_.resources.memory().complete(list.completion(i), list.watch);
    if (!keys_) return;
    const device::DeviceScope on(engine_.resources.device());
    if (queries_) {
      add_key_grads(list, nullptr);
      add_query_grads(list);
    } else {
      add_all_grads(list);
    }
    list.front().scope.progress();
  }

  [[nodiscard]] int tiles_of(i64 block) const {
    return keys_ ? block_tiles_[static_cast<std::size_t>(block)] : 0;
  }

  /// The sum of dq that scratch holds: rows of a head are contiguous, as the kernel adds to them.
  [[nodiscard]] static View sum_of(const AttendGradArgs& a) {
    View sum{nullptr, DType::fp32, a.q.batch, a.q.rows, a.scope.query_heads, a.dq.width};
    sum.row_stride = a.dq.width, sum.head_stride = a.q.rows * a.dq.width;
    return sum;
  }

  void add_all_grads(const AttendGradBlocks& list) {
    const AttendGradArgs& a = list.front();
    Memory& memory = engine_.resources.memory();
    const ViewRegion all{{0, a.dq.rows}, a.scope.query_heads};
    View sum = a.dq;
    if (!direct_) sum = sum_of(a), sum.data = engine_.resources.scratch(Role::dq);
    if (!direct_ || a.overwrite) memory.fill(part_of(sum, a.scope.query_heads), 0);
    add_key_grads(list, &sum);
    if (!direct_)
      memory.copy_region(sum, all, a.dq, all, a.overwrite ? WriteMode::overwrite : WriteMode::accumulate);
  }

  /// dk and dv, and where there is a sum of dq, that too.
  void add_key_grads(const AttendGradBlocks& list, const View* dq) {
    if (keys_->table.tile_count(true) == 0) return;
    const AttendGradArgs& a = list.front();
    const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
    const KeyTile size = tile_.key_tile(dq != nullptr);
    BackwardParams p;
    describe_grads(p, engine_, a, size.step);
    p.head_end = static_cast<int>(heads.end), p.kv_heads = static_cast<int>(kv.size());
    p.heads_of_all = static_cast<int>(kv.size() * a.q.batch);
    i64 row_bytes = (a.q.width + a.v.width) * bytes_of(a.q.type);
    if (dq != nullptr) {
      p.dq = sum_boxes(*dq, sum_rows), p.dq_head_begin = static_cast<int>(dq->heads.begin);
      row_bytes += dq->width * bytes_of(dq->type);
    }
    p.section_heads = section_heads(grad_section_bytes, a.q.rows * row_bytes * a.scope.group, p.heads_of_all);
    for (i64 i = 0; i < list.count; ++i) {
      const AttendGradArgs& block = list.blocks[i];
      p.grads[i] = {strided(block.dk), strided(block.dv), block.overwrites_dkv(),
                    in_pieces(block.dk) && in_pieces(block.dv)};
      p.completions[i] = list.completion(i),
      p.block_claims[i] = static_cast<unsigned>(tiles_of(i) * p.heads_of_all);
    }
    if (list.completions != nullptr) p.ended = reinterpret_cast<unsigned*>(engine_.claims->data()) + 1;
    describe(p, engine_, list, *keys_, true, {size.step, size.keys});
    const cudaStream_t stream = engine_.resources.memory().stream();
    if (dq != nullptr)
      backward(p, tile_, a.q.type, stream);
    else
      key_grad(p, tile_, a.q.type, stream);
  }

  void add_query_grads(const AttendGradBlocks& list) {
    const AttendGradArgs& a = list.front();
    if (queries_->table.tile_count(a.overwrite) == 0) return;
    QueryGradParams p;
    p.bundle_log2 = bundle_log2_;
    describe_grads(p, engine_, a, query_rows >> bundle_log2_, 1 << bundle_log2_);
    p.dq = strided(a.dq);
    p.dq_pieces = divides(a.dq, 16, 16 / bytes_of(a.dq.type));
    describe_query_tiles(p, engine_, list, *queries_, tile_.keys);
    query_grad(p, tile_, a.q.type, engine_.resources.memory().stream());
  }

  Engine& engine_;
  GradTile tile_{};
  std::optional<Tiles<QuerySegment>> keys_;   ///< empty: no work
  std::vector<int> block_tiles_;              ///< of keys, by block
  std::optional<Tiles<KeySegment>> queries_;  ///< of dq alone, which has a launch of its own
  int bundle_log2_ = 0;                       ///< of those
  bool direct_ = false;                       ///< dq is summed in its own memory
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
  [[nodiscard]] bool waits_inside(Pass /*pass*/) const override { return hopper_traits.waits_inside; }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override { return engine_.fallback.counts(); }

  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope on(engine_.resources.device());
    Decision decision = decide(a);
    if (decision.own) return std::make_unique<ForwardStep<AttendArgs>>(engine_, a);
    return std::make_unique<LeftStep<AttendArgs, Pass::forward>>(engine_, a, std::move(decision.departures));
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope on(engine_.resources.device());
    Decision decision = decide(a);
    if (decision.own) return std::make_unique<BackwardStep<AttendGradArgs>>(engine_, a);
    return std::make_unique<LeftStep<AttendGradArgs, Pass::backward>>(engine_, a,
                                                                      std::move(decision.departures));
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendBlocks> prepare_blocks(const AttendBlocks& list) override {
    if (!is_one_launch(list)) return AttentionKernel::prepare_blocks(list);
    const device::DeviceScope on(engine_.resources.device());
    return std::make_unique<ForwardStep<AttendBlocks>>(engine_, list);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGradBlocks> prepare_blocks(
      const AttendGradBlocks& list) override {
    if (!is_one_launch(list)) return AttentionKernel::prepare_blocks(list);
    const device::DeviceScope on(engine_.resources.device());
    return std::make_unique<BackwardStep<AttendGradBlocks>>(engine_, list);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope on(engine_.resources.device());
    cuda::launch_delta(a, memory().stream());
  }

 private:
  [[nodiscard]] Decision decide(const AttendArgs& a) {
    return hopper::decide(a, cuda::call_traits(a, engine_.compute_major));
  }
  [[nodiscard]] Decision decide(const AttendGradArgs& a) {
    schedule::CallTraits call = cuda::call_traits(a, engine_.compute_major);
    call.backward = true;
    call.deterministic = engine_.resources.deterministic();
    return hopper::decide(a, call);
  }
  /// Whether the kernel computes all blocks at once. They share all that it decides by.
  template <class Args>
  [[nodiscard]] bool is_one_launch(const BlockList<Args>& list) {
    check(list, rounds_results());
    const auto in_place = [](const Args& a) {
      return is_read_in_place(a.k, a.q.type) && is_read_in_place(a.v, a.q.type);
    };
    return list.count <= max_blocks && decide(list.front()).own &&
           std::all_of(list.begin(), list.end(), in_place);
  }

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
