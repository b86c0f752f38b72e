// SPDX-License-Identifier: Apache-2.0
#include "../state/state.hpp"
#include "params.hpp"
#include "work_list.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace usp::kernels {
namespace {

using namespace mma;

template <class V>
[[nodiscard]] bool divides(const V& view, std::uintptr_t bytes, i64 elements) {
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 && view.batch_stride % elements == 0 &&
         view.row_stride % elements == 0 && view.head_stride % elements == 0;
}

template <class V>
[[nodiscard]] Strided strided(const V& view) {
  Strided s;
  s.type = view.type;
  s.batch = view.batch_stride, s.row = view.row_stride, s.head = view.head_stride;
  s.pairs = divides(view, static_cast<std::uintptr_t>(2 * bytes_of(view.type)), 2);
  // The heads of a view start anywhere, the kernels count them from 0.
  const auto at = reinterpret_cast<std::uintptr_t>(view.data) -
                  static_cast<std::uintptr_t>(view.heads.begin * view.head_stride * bytes_of(view.type));
  s.data = reinterpret_cast<char*>(at);
  return s;
}

/// Padded head dims that a pair of true ones runs in.
struct PaddedDims {
  int dk = 0, dv = 0;
  bool terms = false;
};

[[nodiscard]] int padded(i64 width, std::initializer_list<int> dims) {
  for (const int d : dims)
    if (width <= d) return d;
  throw EnvironmentError(fmt::format(
      "a head dim of {} is more than the mma GPU kernel's 256; use a model with smaller heads", width));
}

[[nodiscard]] PaddedDims padded_dims(i64 dqk, i64 dv, bool terms) {
  if (!terms && dqk > 128 && dqk <= 192 && dv <= 128) return {192, 128, false};
  const i64 width = std::max(dqk, dv);
  const int d = terms ? padded(width, {64, 128, 256}) : padded(width, {64, 96, 128, 192, 256});
  return {d, d, terms};
}

[[nodiscard]] Terms terms_of(const ScoreTerms& t) {
  Terms out;
  out.scale = static_cast<float>(t.scale);
  out.scale_log2 = static_cast<float>(t.scale * 1.4426950408889634);
  out.softcap = static_cast<float>(t.softcap);
  out.slopes = t.alibi_slopes;
  out.dropout = t.dropout != 0;
  out.threshold = dropout_threshold(t.dropout);
  out.keep = static_cast<float>(1 / (1 - t.dropout));
  out.seed = t.dropout_seed;
  if (t.blocks == nullptr) return out;
  out.block_q = t.blocks->block_q, out.block_k = t.blocks->block_k;
  out.block_rows = t.blocks->rows, out.block_columns = t.blocks->columns;
  out.admitted = t.blocks->admitted;
  return out;
}

/// More than a band of positions; a scale that turns the order of scores round counts too.
[[nodiscard]] bool needs_terms(const ScoreTerms& t) {
  return t.softcap != 0 || t.alibi_slopes != nullptr || t.dropout != 0 || t.blocks != nullptr ||
         !(t.scale > 0);
}

void check_type(DType io) {
  if (io != DType::bf16 && io != DType::fp16)
    throw EnvironmentError(
        "the mma GPU kernel takes bf16 and fp16, which tensor cores multiply; convert the "
        "inputs or use the CPU");
}

/// Calls launch.operator()<dk, dv, terms>() for the shape that a kernel is built in.
template <class Launch>
void with_dims(PaddedDims d, const Launch& launch) {
  if (d.terms)
    return d.dk == 64    ? launch.template operator()<64, 64, true>()
           : d.dk == 128 ? launch.template operator()<128, 128, true>()
                         : launch.template operator()<256, 256, true>();
  switch (d.dk) {
    case 64:
      return launch.template operator()<64, 64, false>();
    case 96:
      return launch.template operator()<96, 96, false>();
    case 128:
      return launch.template operator()<128, 128, false>();
    case 192:
      return d.dv == 128 ? launch.template operator()<192, 128, false>()
                         : launch.template operator()<192, 192, false>();
    default:
      return launch.template operator()<256, 256, false>();
  }
}

void forward(const ForwardParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  with_dims(d, [&]<int dk, int dv, bool terms>() { launch_forward<dk, dv, terms>(p, io, stream); });
}

void backward(const BackwardParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  with_dims(d, [&]<int dk, int dv, bool terms>() { launch_backward<dk, dv, terms>(p, io, stream); });
}

void query_grad(const QueryGradParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  if (d.dk == 64) return launch_query_grad<64>(p, io, stream);
  if (d.dk == 128) return launch_query_grad<128>(p, io, stream);
  return launch_query_grad<256>(p, io, stream);
}

[[nodiscard]] int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  device::check_cuda(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

class MmaKernel final : public AttentionKernel {
 public:
  MmaKernel(Memory& memory, const CudaKernelOptions& options)
      : memory_(memory), options_(options), lists_(memory), device_(memory.device()) {
    if (attribute(cudaDevAttrComputeCapabilityMajor, device_) < 8)
      throw EnvironmentError(fmt::format(
          "GPU {} is older than compute capability 8.0, which the mma kernel is made for; use the CPU",
          device_));
    shared_per_block_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_);
    shared_per_sm_ = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_);
    for (auto& arena : scratch_) arena = memory.make_arena();
  }

  [[nodiscard]] const char* name() const override { return "mma"; }
  [[nodiscard]] Memory& memory() override { return memory_; }
  void forget() override { lists_.forget(); }
  [[nodiscard]] bool rounds_results() const override { return true; }

  void attend(const AttendArgs& a) override {
    check(a, rounds_results());
    check_type(a.q.type);
    if (a.scope.query_heads.empty() || a.q.batch == 0) return;
    const device::DeviceScope on(device_);
    const PaddedDims dims = padded_dims(a.q.width, a.v.width, needs_terms(*a.scope.terms));
    ForwardParams p;
    const DeviceTable& table =
        lists_.queries(slices_of(a.scope), a.q.rows, forward_rows(dims.dv, dims.terms));
    if (!describe(p, table, a.scope, {a.q, a.k, a.v}, a.overwrite)) return;
    p.segments = static_cast<const KeySegment*>(table.segments);
    p.o = strided(a.o);
    p.lse = strided(a.lse);
    p.sink = a.sink;
    forward(p, dims, a.q.type, memory_.stream());
  }

  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope on(device_);
    cuda::launch_delta(a, memory_.stream());
  }

  void attend_grad(const AttendGradArgs& a) override {
    check(a, rounds_results());
    check_type(a.q.type);
    if (a.scope.query_heads.empty() || a.q.batch == 0) return;
    const device::DeviceScope on(device_);
    const Strided d_o = input(a.d_o, a.q.type, a.scope.query_heads, Role::d_o);
    const bool whole_dq = options_.deterministic;
    const View dq = whole_dq ? a.dq : begin_query_grad(a);
    key_grad(a, d_o, dq);
    const ViewRegion region{{0, a.dq.rows}, a.scope.query_heads};
    if (whole_dq)
      query_grad_alone(a, d_o);
    else if (dq.data != a.dq.data)
      memory_.copy_region(dq, region, a.dq, region,
                          a.overwrite ? WriteMode::overwrite : WriteMode::accumulate);
  }

 private:
  enum class Role { q, k, v, d_o, dq, count };
  struct Operands {
    ConstView q, k, v;
  };

  [[nodiscard]] static SliceList slices_of(const AttendScope& scope) {
    return {scope.slices, scope.slice_count};
  }

  /// What all launches share; false when there is no tile to work on.
  bool describe(Common& p, const DeviceTable& table, const AttendScope& scope, const Operands& in,
                bool overwrite) {
    p.tile_count = overwrite ? table.tile_count : table.busy;
    if (p.tile_count == 0) return false;
    p.q = input(in.q, in.q.type, scope.query_heads, Role::q);
    p.k = input(in.k, in.q.type, scope.kv_heads(), Role::k);
    p.v = input(in.v, in.q.type, scope.kv_heads(), Role::v);
    p.tiles = table.tiles;
    p.slices = table.slices;
    p.q_rows = static_cast<int>(in.q.rows);
    p.head_begin = static_cast<int>(scope.query_heads.begin);
    p.head_end = static_cast<int>(scope.query_heads.end);
    p.group = scope.group;
    p.batch = static_cast<int>(in.q.batch);
    p.dqk = static_cast<int>(in.q.width);
    p.dv = static_cast<int>(in.v.width);
    p.shared_per_block = shared_per_block_, p.shared_per_sm = shared_per_sm_;
    p.overwrite = overwrite;
    p.terms = terms_of(*scope.terms);
    return true;
  }

  void key_grad(const AttendGradArgs& a, const Strided& d_o, const View& dq) {
    PaddedDims dims = padded_dims(a.q.width, a.v.width, needs_terms(*a.scope.terms));
    if (backward_shared_bytes(dims.dk, dims.dv, dims.terms, 1) > shared_per_block_)
      dims = padded_dims(a.q.width, a.v.width, true);  // smaller tiles
    need_shared(backward_shared_bytes(dims.dk, dims.dv, dims.terms, 1));
    BackwardParams p;
    const DeviceTable& table = lists_.keys(slices_of(a.scope), a.dk.rows, backward_keys(dims.dk, dims.terms));
    if (!describe(p, table, a.scope, {a.q, a.k, a.v}, a.overwrite)) return;
    p.segments = static_cast<const QuerySegment*>(table.segments);
    p.d_o = d_o;
    p.lse = strided(a.lse), p.delta = strided(a.delta);
    p.dq = strided(dq), p.dk = strided(a.dk), p.dv_out = strided(a.dv);
    p.dk_rows = static_cast<int>(a.dk.rows);
    p.add_dq = !options_.deterministic;
    p.dq_fours = dq.width % 16 == 0 && divides(dq, 16, 4);
    backward(p, dims, a.q.type, memory_.stream());
  }

  void query_grad_alone(const AttendGradArgs& a, const Strided& d_o) {
    const PaddedDims dims = padded_dims(a.q.width, a.v.width, true);
    need_shared(query_grad_shared_bytes(dims.dk));
    QueryGradParams p;
    const DeviceTable& table = lists_.queries(slices_of(a.scope), a.q.rows, query_grad_rows);
    if (!describe(p, table, a.scope, {a.q, a.k, a.v}, a.overwrite)) return;
    p.segments = static_cast<const KeySegment*>(table.segments);
    p.d_o = d_o;
    p.lse = strided(a.lse), p.delta = strided(a.delta), p.dq = strided(a.dq);
    query_grad(p, dims, a.q.type, memory_.stream());
  }

  /// Where dq is summed: itself, zeroed when overwrite, or fp32 scratch when it is to be rounded in the end
  /// or its elements do not lie in aligned pairs.
  [[nodiscard]] View begin_query_grad(const AttendGradArgs& a) {
    const Range heads = a.scope.query_heads;
    const bool direct = a.dq.type == DType::fp32 && a.dq.width % 2 == 0 && strided(a.dq).pairs;
    if (direct && !a.overwrite) return a.dq;
    View sum = a.dq;
    if (!direct) {
      const i64 width = (a.dq.width + 1) / 2 * 2;
      sum = View(scratch(Role::dq, a.q.batch * a.q.rows * heads.size() * width * 4), DType::fp32, a.q.batch,
                 a.q.rows, heads, width);
    }
    View part = sum;
    part.data = sum.at(0, 0, heads.begin);
    part.heads = heads;
    memory_.fill(part, 0);
    sum.width = a.dq.width;
    return sum;
  }

  /// A view as the kernels read it; one that 16-byte copies cannot read is copied first, its width filled up.
  [[nodiscard]] Strided input(const ConstView& view, DType io, Range heads, Role role) {
    if (view.type == io && view.width % 8 == 0 && divides(view, 16, 8)) return strided(view);
    const i64 width = (view.width + 7) / 8 * 8;
    View copy(scratch(role, view.batch * view.rows * heads.size() * width * bytes_of(io)), io, view.batch,
              view.rows, heads, width);
    if (width != view.width) memory_.fill(copy, 0);
    copy.width = view.width;
    const ViewRegion region{{0, view.rows}, heads};
    memory_.copy_region(view, region, copy, region, WriteMode::overwrite);
    return strided(copy);
  }

  [[nodiscard]] std::byte* scratch(Role role, i64 bytes) {
    Arena& arena = *scratch_[static_cast<std::size_t>(role)];
    arena.reserve(bytes);
    return arena.data();
  }

  void need_shared(int bytes) const {
    if (bytes <= shared_per_block_) return;
    throw EnvironmentError(
        fmt::format("backward attention of this head dim needs {} bytes of shared memory in a block, and GPU "
                    "{} has {}; use a data-center GPU or the CPU",
                    bytes, device_, shared_per_block_));
  }

  Memory& memory_;
  CudaKernelOptions options_;
  WorkLists lists_;
  int device_ = 0, shared_per_block_ = 0, shared_per_sm_ = 0;
  std::array<std::unique_ptr<Arena>, static_cast<std::size_t>(Role::count)> scratch_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_mma_kernel(Memory& memory, const CudaKernelOptions& options) {
  return std::make_unique<MmaKernel>(memory, options);
}

}  // namespace usp::kernels
