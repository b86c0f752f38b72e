// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "../tiles/resources.hpp"
#include "dispatch.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

namespace usp::kernels {
namespace {

using namespace mma;

using QueryTable = DeviceTable<KeySegment>;
using KeyTable = DeviceTable<QuerySegment>;

void check_type(DType io) {
  if (io != DType::bf16 && io != DType::fp16)
    throw EnvironmentError(
        "the mma GPU kernel takes bf16 and fp16, which tensor cores multiply; convert the "
        "inputs or use the CPU");
}

[[nodiscard]] SliceList slices_of(const AttendScope& scope) {
  return {scope.slices, scope.slice_count};
}

/// What all launches of a step share, but for the table's segments.
template <class Args, class Table>
void describe(Common& p, Resources& r, const Args& a, const Table& table, bool overwrite) {
  const Range heads = a.scope.query_heads, kv = a.scope.kv_heads();
  p.q = r.input(a.q, a.q.type, heads, Role::q);
  p.k = r.input(a.k, a.q.type, kv, Role::k);
  p.v = r.input(a.v, a.q.type, kv, Role::v);
  p.tile_count = table.tile_count(overwrite);
  p.tiles = table.tiles();
  p.slices = table.slices();
  p.q_rows = static_cast<int>(a.q.rows);
  p.head_begin = static_cast<int>(heads.begin);
  p.head_end = static_cast<int>(heads.end);
  p.group = a.scope.group;
  p.batch = static_cast<int>(a.q.batch);
  p.dqk = static_cast<int>(a.q.width);
  p.dv = static_cast<int>(a.v.width);
  p.shared_per_block = r.shared_per_block(), p.shared_per_sm = r.shared_per_sm();
  p.device = r.device();
  p.overwrite = overwrite;
  p.terms = terms_of(*a.scope.terms);
}

template <class Args>
void make_room(Resources& r, const Args& a) {
  r.make_room(a.q, a.q.type, a.scope.query_heads, Role::q);
  r.make_room(a.k, a.q.type, a.scope.kv_heads(), Role::k);
  r.make_room(a.v, a.q.type, a.scope.kv_heads(), Role::v);
}

template <class Args>
[[nodiscard]] bool is_work(const Args& a) {
  return !a.scope.query_heads.empty() && a.q.batch != 0;
}

class ForwardStep final : public PreparedAttend {
 public:
  ForwardStep(Resources& r, const AttendArgs& a) : PreparedAttend(a), r_(r) {
    if (!is_work(a)) return;
    dims_ = padded_dims(a.q.width, a.v.width, needs_terms(*a.scope.terms));
    const int tile_rows = forward_rows(dims_.dv, dims_.terms);
    const SliceList slices = slices_of(a.scope);
    table_.emplace(r.tables(), slices, tiles_of_queries(slices, even_tiles(a.q.rows, tile_rows)));
    make_room(r, a);
  }

 private:
  void enqueue(const AttendArgs& a) override {
    if (!table_ || table_->tile_count(a.overwrite) == 0) return;
    const device::DeviceScope on(r_.device());
    ForwardParams p;
    describe(p, r_, a, *table_, a.overwrite);
    p.segments = table_->segments();
    p.o = strided(a.o);
    p.lse = strided(a.lse);
    p.sink = a.sink;
    forward(p, dims_, a.q.type, r_.memory().stream());
  }

  Resources& r_;
  PaddedDims dims_;
  std::optional<QueryTable> table_;  ///< empty: no work
};

class BackwardStep final : public PreparedAttendGrad {
 public:
  BackwardStep(Resources& r, const AttendGradArgs& a) : PreparedAttendGrad(a), r_(r) {
    if (!is_work(a)) return;
    const SliceList slices = slices_of(a.scope);
    dims_ = padded_dims(a.q.width, a.v.width, needs_terms(*a.scope.terms));
    if (backward_shared_bytes(dims_.dk, dims_.dv, dims_.terms, 1) > r.shared_per_block())
      dims_ = padded_dims(a.q.width, a.v.width, true);  // smaller tiles
    r.need_shared(backward_shared_bytes(dims_.dk, dims_.dv, dims_.terms, 1));
    const int tile_rows = backward_keys(dims_.dk, dims_.terms);
    keys_.emplace(r.tables(), slices, tiles_of_keys(slices, {even_tiles(a.dk.rows, tile_rows)}, tile_rows));
    make_room(r, a);
    r.make_room(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
    if (r.deterministic()) {
      query_dims_ = padded_dims(a.q.width, a.v.width, true);
      r.need_shared(query_grad_shared_bytes(query_dims_.dk));
      queries_.emplace(r.tables(), slices, tiles_of_queries(slices, even_tiles(a.q.rows, query_grad_rows)));
      return;
    }
    direct_ = a.dq.type == DType::fp32 && a.dq.width % 2 == 0 && strided(a.dq).pairs;
    if (!direct_) r.reserve(Role::dq, sum_of(a).elements() * bytes_of(DType::fp32));
  }

 private:
  void enqueue(const AttendGradArgs& a) override {
    if (!keys_) return;
    const device::DeviceScope on(r_.device());
    const Strided d_o = r_.input(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
    if (queries_) {
      key_grad(a, d_o, a.dq);
      return query_grad_alone(a, d_o);
    }
    const View dq = begin_query_grad(a);
    key_grad(a, d_o, dq);
    const ViewRegion region{{0, a.dq.rows}, a.scope.query_heads};
    if (!direct_)
      r_.memory().copy_region(dq, region, a.dq, region,
                              a.overwrite ? WriteMode::overwrite : WriteMode::accumulate);
  }

  void key_grad(const AttendGradArgs& a, const Strided& d_o, const View& dq) {
    if (keys_->tile_count(a.overwrites_dkv()) == 0) return;
    BackwardParams p;
    describe(p, r_, a, *keys_, a.overwrites_dkv());
    p.segments = keys_->segments();
    p.d_o = d_o;
    p.lse = strided(a.lse), p.delta = strided(a.delta);
    p.dq = strided(dq), p.dk = strided(a.dk), p.dv_out = strided(a.dv);
    p.dk_rows = static_cast<int>(a.dk.rows);
    p.add_dq = !queries_;
    p.dq_fours = dq.width % 16 == 0 && divides(dq, 16, 4);
    backward(p, dims_, a.q.type, r_.memory().stream());
  }

  void query_grad_alone(const AttendGradArgs& a, const Strided& d_o) {
    if (queries_->tile_count(a.overwrite) == 0) return;
    QueryGradParams p;
    describe(p, r_, a, *queries_, a.overwrite);
    p.segments = queries_->segments();
    p.d_o = d_o;
    p.lse = strided(a.lse), p.delta = strided(a.delta), p.dq = strided(a.dq);
    query_grad(p, query_dims_, a.q.type, r_.memory().stream());
  }

  /// The sum of dq that scratch holds, rows in pairs of elements.
  [[nodiscard]] static View sum_of(const AttendGradArgs& a) {
    return {nullptr, DType::fp32, a.q.batch, a.q.rows, a.scope.query_heads, (a.dq.width + 1) / 2 * 2};
  }

  /// Where dq is summed: itself, zeroed when overwrite, or fp32 scratch when it is to be rounded in the end
  /// or its elements do not lie in aligned pairs.
  [[nodiscard]] View begin_query_grad(const AttendGradArgs& a) {
    if (direct_ && !a.overwrite) return a.dq;
    View sum = a.dq;
    if (!direct_) {
      sum = sum_of(a);
      sum.data = r_.scratch(Role::dq);
    }
    View part = sum;
    part.data = sum.at(0, 0, a.scope.query_heads.begin);
    part.heads = a.scope.query_heads;
    r_.memory().fill(part, 0);
    sum.width = a.dq.width;
    return sum;
  }

  Resources& r_;
  PaddedDims dims_, query_dims_;
  bool direct_ = false;                ///< dq is summed in its own memory
  std::optional<KeyTable> keys_;       ///< empty: no work
  std::optional<QueryTable> queries_;  ///< of dq alone, where gradients repeat bit for bit
};

class MmaKernel final : public AttentionKernel {
 public:
  MmaKernel(Memory& memory, const CudaKernelOptions& options) : resources_(memory, options) {}

  [[nodiscard]] const char* name() const override { return "mma"; }
  [[nodiscard]] Memory& memory() override { return resources_.memory(); }
  [[nodiscard]] bool rounds_results() const override { return mma_traits.rounds_results; }

  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& a) override {
    return prepare_step<ForwardStep>(a);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& a) override {
    return prepare_step<BackwardStep>(a);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope on(resources_.device());
    cuda::launch_delta(a, memory().stream());
  }

 private:
  template <class Step, class Args>
  [[nodiscard]] std::unique_ptr<Step> prepare_step(const Args& a) {
    check(a, rounds_results());
    check_type(a.q.type);
    const device::DeviceScope on(resources_.device());
    return std::make_unique<Step>(resources_, a);
  }

  Resources resources_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_mma_kernel(Memory& memory, const CudaKernelOptions& options) {
  return std::make_unique<MmaKernel>(memory, options);
}

}  // namespace usp::kernels
