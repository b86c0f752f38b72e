// SPDX-License-Identifier: Apache-2.0
#include "measurements.hpp"

#include "exchange.hpp"
#include "kernel_call.hpp"
#include "products.hpp"
#include "runtime_call.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cmath>

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

/// Beyond what caches of a GPU hold; on a host from what one call hides to what memory bounds.
std::vector<i64> copy_sizes(const Workbench& bench) {
  if (bench.scope.on_gpu && bench.scope.quick) return {128 * mib, 256 * mib};
  if (bench.scope.on_gpu) return {256 * mib, 512 * mib, 1024 * mib};
  std::vector<i64> sizes;
  for (i64 bytes = mib; bytes <= bench.timer.pace().max_bytes; bytes *= 4) sizes.push_back(bytes);
  return sizes;
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

/// A hop that takes about so long.
i64 hop_bytes(const Part& part, const Workbench& bench, double seconds) {
  Part hops = part;
  hops.kind = Part::Kind::exchange;
  auto bytes = static_cast<double>(std::max(kib, bench.device.lane(part.transport).memory.shape().run_bytes));
  double nearest = -1;
  if (const auto rows = bench.results.find(hops.name()); rows != bench.results.end())
    for (const auto& row : rows->second) {
      const double off = std::abs(std::log(row[1] / seconds));
      if (nearest < 0 || off < nearest) nearest = off, bytes = row[0];
    }
  return static_cast<i64>(bytes);
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

Rows interference(const Part& part, const Workbench& bench) {
  KernelCall call(bench.device.kernel(part.backend), call_beside(part, bench));
  const double kernel_s = bench.timer.measure([&] { call.forward(); }).seconds;
  const ExchangeRole role = role_of(part.key, bench.machine, bench.rank);
  Lane& lane = bench.device.lane(part.transport);
  Rows rows;
  for (const double share : {0.25, 0.5, 1.0}) {
    Exchange hop(*lane.plane, lane.memory, role, hop_bytes(part, bench, share * kernel_s));
    if (!bench.scope.on_gpu)
      call.set_progress({[](void* of) { static_cast<Exchange*>(of)->progress(); }, &hop});
    const double transfer_s = bench.timer.measure([&] { hop.run(); }).seconds;
    const double both_s = bench.timer
                              .measure([&] {
                                hop.start();
                                call.forward();
                                hop.finish();
                              })
                              .seconds;
    call.set_progress({});
    lane.plane->check();
    rows.push_back({kernel_s, transfer_s, both_s});
    if (bench.time_is_up()) break;
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
