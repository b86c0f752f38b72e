// SPDX-License-Identifier: Apache-2.0
#include "measurements.hpp"

#include "exchange.hpp"
#include "kernel_call.hpp"
#include "products.hpp"
#include "runtime_call.hpp"

#include "usp/base/error.hpp"

#include <algorithm>

namespace usp::measure {
namespace {

constexpr i64 kib = 1024, mib = i64{1} << 20;
/// Where a curve may end when the time is up: its longest message is led by the rate, not by the latency or
/// by the timers of TCP, which hold single messages of 64 to 256 KiB for milliseconds.
constexpr i64 host_ruled_bytes = mib, device_ruled_bytes = 32 * mib;
constexpr double ruled_s = 0.1;

/// On GPUs the backend of the part, whose fallbacks then count.
std::optional<Backend> use_of(const Part& part, const Workbench& bench) {
  return bench.scope.on_gpu ? find_backend(part.backend) : std::nullopt;
}

i64 fallbacks_of(const kernels::AttentionKernel& kernel) {
  i64 count = 0;
  for (const kernels::BackendFallback& fallback : kernel.fallbacks()) count += fallback.count;
  return count;
}

/// Of the copies of one rank: sources and targets of all ranks of a host are four times its last cache.
i64 beyond_cache_bytes(const Machine& machine) {
  constexpr i64 times = 4, least = 8 * mib, most = 128 * mib;
  const i64 all = times / 2 * machine.cache_bytes / std::max(1, machine.ranks_per_host());
  return std::clamp((all + mib - 1) / mib * mib, least, most);
}

/// Beyond what caches hold: what memory bounds.
std::vector<i64> copy_sizes(const Workbench& bench) {
  if (bench.scope.on_gpu && bench.scope.quick) return {128 * mib, 256 * mib};
  if (bench.scope.on_gpu) return {256 * mib, 512 * mib, 1024 * mib};
  const i64 bytes = beyond_cache_bytes(bench.machine);
  if (bench.scope.quick) return {bytes};
  return {bytes, 2 * bytes};
}

Rows copies(const Workbench& bench) {
  constexpr i64 width = 1024;
  kernels::Memory& memory = bench.device.memory();
  Rows rows;
  const auto from = memory.make_arena(), to = memory.make_arena();
  for (const i64 bytes : copy_sizes(bench)) {
    from->reserve(bytes), to->reserve(bytes);
    memory.set_bytes(from->data(), 0, bytes);
    const i64 count = bytes / (width * bytes_of(DType::fp32));
    const kernels::ViewRegion all{{0, count}, {0, 1}};
    const kernels::View source(from->data(), DType::fp32, 1, count, {0, 1}, width),
        target(to->data(), DType::fp32, 1, count, {0, 1}, width);
    const Sample sample =
        bench.measure_local([&] { memory.copy_region(source, all, target, all, WriteMode::overwrite); });
    rows.push_back({2.0 * static_cast<double>(bytes), sample.seconds, sample.spread});
    if (bench.time_is_up()) break;
  }
  return rows;
}

Rows products(const Workbench& bench) {
  kernels::Memory& memory = bench.device.memory();
  const std::unique_ptr<ProductLibrary> library = open_products(memory, bench.dtype);
  Rows rows;
  if (bench.timer.slowest(library == nullptr ? 1 : 0) > 0) return rows;
  for (const ProductShape& s : product_grid(bench.scope)) {
    Tensors tensors(memory);
    tensors.reserve((s.m * s.k + s.k * s.n + s.m * s.n) * bytes_of(bench.dtype), 3);
    const kernels::View a = tensors.random(bench.dtype, s.m, 1, s.k),
                        b = tensors.random(bench.dtype, s.k, 1, s.n),
                        c = tensors.take(bench.dtype, s.m, 1, s.n);
    const Sample sample = bench.measure_local([&] { library->multiply(s, a.data, b.data, c.data); });
    rows.push_back({static_cast<double>(s.m), static_cast<double>(s.n), static_cast<double>(s.k),
                    sample.seconds, sample.spread});
    if (bench.time_is_up()) break;
  }
  return rows;
}

Rows kernel(const Part& part, const Workbench& bench) {
  Rows rows;
  kernels::AttentionKernel& kernel = bench.device.kernel(part.backend);
  const i64 left_before = fallbacks_of(kernel);
  for (const GridCall& grid : kernel_grid(part, bytes_of(bench.dtype), bench.scope)) {
    const bool window = grid.shape.mask == KernelShape::Mask::window;
    if (!window && rows.size() >= least_grid_calls && bench.time_is_up()) continue;
    const KernelShape& s = grid.shape;
    KernelCall call(kernel, {bench.dtype, s, grid.window, use_of(part, bench)});
    if (part.backward) call.prepare_backward();
    const Sample sample = bench.measure_local([&] { part.backward ? call.backward() : call.forward(); });
    if (bench.timer.slowest(static_cast<double>(fallbacks_of(kernel) - left_before)) > 0) return {};
    rows.push_back({s.query_heads, s.kv_heads, s.rows, s.mean_keys, s.key_rows,
                    static_cast<double>(static_cast<int>(s.mask)), sample.seconds, sample.spread});
  }
  return rows;
}

/// Forward, then backward.
Rows runtime_call(const Part& part, const Workbench& bench) {
  kernels::AttentionKernel& kernel = bench.device.kernel(part.backend);
  constexpr double heads = RuntimeCall::heads, tokens = RuntimeCall::tokens;
  constexpr int dim = RuntimeCall::head_dim;
  KernelShape shape{heads,
                    heads,
                    dim,
                    dim,
                    tokens,
                    mean_keys(KernelShape::Mask::causal, RuntimeCall::tokens, RuntimeCall::tokens, 0),
                    tokens,
                    KernelShape::Mask::causal,
                    static_cast<int>(bytes_of(bench.dtype))};
  KernelCall block(kernel, {bench.dtype, shape, 0, use_of(part, bench)});
  RuntimeCall call(kernel, use_of(part, bench).value_or(Backend{}), bench.dtype);
  const Sample forward = bench.measure_local([&] { block.forward(); }),
               pass = bench.measure_local([&] { call.forward(); });
  call.forward();
  block.prepare_backward();
  const Sample backward = bench.measure_local([&] { block.backward(); }),
               pass_back = bench.measure_local([&] { call.backward(); });
  return {{forward.seconds, pass.seconds}, {backward.seconds, pass_back.seconds}};
}

Rows exchange(const Part& part, const Workbench& bench) {
  Rows rows;
  const NetworkKey& key = part.key;
  Lane& lane = bench.device.lane(part.transport);
  const ExchangeRole role = part.between_pair()
                                ? role_between(part.first_host, part.second_host, bench.machine, bench.rank)
                                : role_of(key, bench.machine, bench.rank);
  const i64 ruled_bytes = bench.scope.on_gpu ? device_ruled_bytes : host_ruled_bytes;
  i64 step = 2;
  for (i64 message = std::max(kib, lane.memory.shape().run_bytes);; message *= step) {
    if (!part.doubles() && (bench.scope.quick || bench.time_is_up())) step = 4;
    Exchange exchange(*lane.plane, lane.memory, role, message);
    const Sample sample = bench.timer.measure([&] { exchange.run(); });
    lane.plane->check();
    const i64 bytes = message * key.messages();
    rows.push_back({static_cast<double>(bytes), sample.seconds, sample.spread});
    const bool enough =
        sample.seconds > bench.timer.pace().longest_s || step * bytes > bench.timer.pace().max_bytes;
    const bool ruled = bench.scope.quick || bytes >= ruled_bytes || sample.seconds >= ruled_s;
    if (rows.size() >= 2 && (enough || (ruled && bench.time_is_up()))) return rows;
  }
}

/// Of the shortest message.
i64 least_bytes(const Part& part, const Workbench& bench) {
  return std::max(kib, bench.device.lane(part.transport).memory.shape().run_bytes);
}

/// The longest hop that takes no longer: what it adds to a kernel then shows in the kernel's time.
i64 hop_bytes(const Part& part, const Workbench& bench, double seconds) {
  Part hops = part;
  hops.kind = Part::Kind::exchange;
  i64 bytes = least_bytes(part, bench);
  if (const auto rows = bench.results.find(hops.name()); rows != bench.results.end())
    for (const auto& row : rows->second)
      if (row[1] <= seconds) bytes = std::max(bytes, static_cast<i64>(row[0]));
  return bytes;
}

BlockCall call_beside(const Part& part, const Workbench& bench) {
  double heads = bench.scope.quick ? 2 : 4;
  i64 tokens = bench.scope.quick ? 256 : 512;
  int head_dim = 64;
  if (bench.scope.on_gpu) heads = 16, tokens = bench.scope.quick ? 4096 : 8192, head_dim = 128;
  const auto rows = static_cast<double>(tokens);
  const KernelShape shape{heads,
                          heads,
                          head_dim,
                          head_dim,
                          rows,
                          mean_keys(KernelShape::Mask::causal, tokens, tokens, 0),
                          rows,
                          KernelShape::Mask::causal,
                          static_cast<int>(bytes_of(bench.dtype))};
  return {bench.dtype, shape, 0, use_of(part, bench)};
}

/// One pass of a kernel, alone and beside hops.
class KernelBesideHops {
 public:
  KernelBesideHops(const Part& part, const Workbench& bench)
      : bench_(bench),
        lane_(bench.device.lane(part.transport)),
        role_(role_of(part.key, bench.machine, bench.rank)),
        call_(bench.device.kernel(part.backend), call_beside(part, bench)) {
    call_.prepare_backward();
  }
  void set_pass(bool backward) { backward_ = backward; }

  [[nodiscard]] double alone_s() {
    return bench_.timer.measure([&] { compute(); }).seconds;
  }
  [[nodiscard]] double hop_s(i64 bytes) {
    Exchange hop(*lane_.plane, lane_.memory, role_, bytes);
    return bench_.timer.measure([&] { hop.run(); }).seconds;
  }
  [[nodiscard]] double both_s(i64 bytes) {
    Exchange hop(*lane_.plane, lane_.memory, role_, bytes);
    if (!bench_.scope.on_gpu)
      call_.set_progress({[](void* of) { static_cast<Exchange*>(of)->progress(); }, &hop});
    const Sample both = bench_.timer.measure([&] {
      hop.start();
      compute();
      hop.finish();
    });
    call_.set_progress({});
    lane_.plane->check();
    return both.seconds;
  }

 private:
  void compute() { backward_ ? call_.backward() : call_.forward(); }

  const Workbench& bench_;
  Lane& lane_;
  ExchangeRole role_;
  KernelCall call_;
  bool backward_ = false;
};

/// Alone, beside a hop of next to no bytes and beside one that lasts are timed in turns: the clock of a card
/// drifts with what it did before.
Rows interference(const Part& part, const Workbench& bench) {
  constexpr int turns = 2;
  KernelBesideHops kernel(part, bench);
  const i64 least = least_bytes(part, bench);
  Rows rows;
  for (const bool backward : {false, true}) {
    kernel.set_pass(backward);
    const double kernel_s = kernel.alone_s();
    for (const double share : {0.5, 1.0}) {
      const i64 bytes = hop_bytes(part, bench, share * kernel_s);
      const double transfer_s = kernel.hop_s(bytes);
      for (int turn = 0; turn < turns; ++turn)
        rows.push_back({kernel.alone_s(), kernel.both_s(least), transfer_s, kernel.both_s(bytes)});
      if (bench.time_is_up()) return rows;
    }
  }
  return rows;
}

}  // namespace

Sample Workbench::measure_local(const std::function<void()>& call) const {
  if (machine.has_own_core(rank) || scope.on_gpu) return timer.measure(call);
  return timer.measure([] {});
}

Pace pace_of(const Scope& scope, bool hurried) {
  Pace pace;
  if (scope.on_gpu) pace = {20e-3, 5, 8, 0.4, 256 * mib};
  if (hurried || scope.quick)
    pace.sample_s /= 5, pace.samples = 3, pace.least_calls = 4, pace.longest_s = 0.05;
  if (scope.quick) pace.max_bytes = scope.on_gpu ? 64 * mib : mib;
  return pace;
}

Rows measure(const Part& part, const Workbench& bench) {
  switch (part.kind) {
    case Part::Kind::copy:
      return copies(bench);
    case Part::Kind::product:
      return products(bench);
    case Part::Kind::kernel:
      return kernel(part, bench);
    case Part::Kind::call:
      return runtime_call(part, bench);
    case Part::Kind::exchange:
      return exchange(part, bench);
    case Part::Kind::interference:
      return interference(part, bench);
  }
  throw InternalError("a measurement has no kind");
}

}  // namespace usp::measure
