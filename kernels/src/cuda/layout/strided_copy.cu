// SPDX-License-Identifier: Apache-2.0
#include "element.hpp"
#include "fast_div.hpp"
#include "strided_copy.hpp"

#include "usp/device/check.cuda.hpp"

#include <limits>

namespace usp::kernels::cuda {
namespace {

constexpr int threads = 256, packs_per_thread = 4;
constexpr i64 max_packs = std::numeric_limits<std::int32_t>::max();

/// From the number of a pack to its place on either side.
struct Walk {
  FastDiv counts[3];  // of the axes 1, 2, 3
  i64 from[4], to[4];
  std::uint32_t packs = 0;

  /// Offsets in elements of pack `n`.
  __device__ void place(std::uint32_t n, i64& source, i64& target) const {
    source = target = 0;
#pragma unroll
    for (int axis = 3; axis > 0; --axis) {
      const std::uint32_t at = counts[axis - 1].split(n);
      source += at * from[axis];
      target += at * to[axis];
    }
    source += n * from[0];
    target += n * to[0];
  }
};

/// A copy's axes at the end of four, the last one counted in packs.
Walk walk_of(const StridedCopy& copy, int pack) {
  Walk walk{};
  i64 packs = 1;
  for (int i = 0; i < 4; ++i) {
    const int axis = i - (4 - copy.rank);
    const Axis a = axis < 0 ? Axis{} : copy.axes[static_cast<std::size_t>(axis)];
    const i64 per_pack = i == 3 ? pack : 1;
    if (i > 0) walk.counts[i - 1] = FastDiv(static_cast<std::uint32_t>(a.count / per_pack));
    walk.from[i] = a.from * per_pack;
    walk.to[i] = a.to * per_pack;
    packs *= a.count / per_pack;
  }
  walk.packs = static_cast<std::uint32_t>(packs);
  return walk;
}

template <class From, class To, bool add>
__device__ To landed(From from, To to) {
  if constexpr (add)
    return narrow<To>(widen(to) + widen(from));
  else if constexpr (std::is_same_v<From, To>)
    return from;
  else
    return narrow<To>(widen(from));
}

/// All loads of a thread are under way before its first store.
template <class From, class To, int pack, bool add>
__global__ void __launch_bounds__(threads) copy_kernel(const From* from, To* to, Walk walk) {
  using Source = Pack<From, pack>;
  using Target = Pack<To, pack>;
  const std::uint32_t first = blockIdx.x * (threads * packs_per_thread) + threadIdx.x;
  Source in[packs_per_thread];
  Target out[packs_per_thread];
  i64 target[packs_per_thread];
#pragma unroll
  for (int u = 0; u < packs_per_thread; ++u) {
    const std::uint32_t n = first + u * threads;
    if (n >= walk.packs) break;
    i64 source;
    walk.place(n, source, target[u]);
    in[u] = Source::load(from + source);
    if constexpr (add) out[u] = Target::load(to + target[u]);
  }
#pragma unroll
  for (int u = 0; u < packs_per_thread; ++u) {
    if (first + u * threads >= walk.packs) break;
#pragma unroll
    for (int i = 0; i < pack; ++i) out[u].set(i, landed<From, To, add>(in[u].at(i), out[u].at(i)));
    out[u].store(to + target[u]);
  }
}

template <class T, int pack>
__global__ void __launch_bounds__(threads) fill_kernel(T* to, Walk walk, double value) {
  Pack<T, pack> out;
#pragma unroll
  for (int i = 0; i < pack; ++i) out.set(i, narrow<T>(value));
  const std::uint32_t first = blockIdx.x * (threads * packs_per_thread) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < packs_per_thread; ++u) {
    const std::uint32_t n = first + u * threads;
    if (n >= walk.packs) return;
    i64 source, target;
    walk.place(n, source, target);
    out.store(to + target);
  }
}

template <class T>
__global__ void fill_heads_kernel(T* to, Walk walk, const double* values) {
  const std::uint32_t n = blockIdx.x * threads + threadIdx.x;
  if (n >= walk.packs) return;
  i64 head, target;
  walk.place(n, head, target);
  to[target] = narrow<T>(values[head]);
}

[[nodiscard]] unsigned blocks_of(std::uint32_t packs, int per_thread) {
  const i64 per_block = i64{threads} * per_thread;
  return static_cast<unsigned>((packs + per_block - 1) / per_block);
}

/// All packs start on a boundary of their size.
[[nodiscard]] bool packs_fit(const StridedCopy& copy, int pack) {
  const auto fits = [&](const std::byte* data, DType type, i64 Axis::*stride) {
    if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(pack * bytes_of(type)) != 0)
      return false;
    for (int i = 0; i + 1 < copy.rank; ++i)
      if (copy.axes[static_cast<std::size_t>(i)].*stride % pack != 0) return false;
    return true;
  };
  return copy.axes[static_cast<std::size_t>(copy.rank - 1)].count % pack == 0 &&
         fits(copy.from, copy.from_type, &Axis::from) && fits(copy.to, copy.to_type, &Axis::to);
}

template <class From, class To, int pack>
void launch(const StridedCopy& copy, cudaStream_t stream) {
  const Walk walk = walk_of(copy, pack);
  const auto kernel = copy.mode == WriteMode::accumulate ? copy_kernel<From, To, pack, true>
                                                         : copy_kernel<From, To, pack, false>;
  kernel<<<blocks_of(walk.packs, packs_per_thread), threads, 0, stream>>>(
      reinterpret_cast<const From*>(copy.from), reinterpret_cast<To*>(copy.to), walk);
  device::check_launch("copy_kernel");
}

/// Calls f for parts whose elements can be counted in 31 bits.
template <class F>
void in_parts(StridedCopy copy, F&& f) {
  if (copy.elements() == 0) return;
  if (copy.elements() <= max_packs) return f(copy);
  Axis& outer = copy.axes[0];
  // A multiple of 16 keeps packs whole where the only axis is the contiguous one.
  const i64 half = outer.count >= 32 ? outer.count / 32 * 16 : outer.count / 2, rest = outer.count - half;
  outer.count = half;
  in_parts(copy, f);
  copy.from += half * outer.from * bytes_of(copy.from_type);
  copy.to += half * outer.to * bytes_of(copy.to_type);
  outer.count = rest;
  in_parts(copy, f);
}

}  // namespace

void launch_copy_kernel(const StridedCopy& whole, CUstream_st* stream) {
  in_parts(whole, [&](const StridedCopy& copy) {
    with_type(copy.from_type, [&](auto* a) {
      with_type(copy.to_type, [&](auto* b) {
        using From = std::remove_pointer_t<decltype(a)>;
        using To = std::remove_pointer_t<decltype(b)>;
        constexpr int pack = common_pack<From, To>;
        if (packs_fit(copy, pack))
          launch<From, To, pack>(copy, stream);
        else
          launch<From, To, 1>(copy, stream);
      });
    });
  });
}

void launch_copy(const StridedCopy& copy, CUstream_st* stream) {
  if (copy.elements() == 0) return;
  const bool plain = copy.rank == 1 && copy.mode == WriteMode::overwrite && copy.from_type == copy.to_type;
  if (!plain) return launch_copy_kernel(copy, stream);
  const auto bytes = static_cast<std::size_t>(copy.elements() * bytes_of(copy.to_type));
  device::check_cuda(cudaMemcpyAsync(copy.to, copy.from, bytes, cudaMemcpyDefault, stream),
                     "cudaMemcpyAsync");
}

void launch_fill(const View& to, double value, CUstream_st* stream) {
  const ViewRegion all{{0, to.rows}, to.heads};
  in_parts(region_copy(to, all, to, all, WriteMode::overwrite), [&](const StridedCopy& part) {
    with_type(to.type, [&](auto* element) {
      using T = std::remove_pointer_t<decltype(element)>;
      constexpr int pack = common_pack<T, T>;
      const bool packed = packs_fit(part, pack);
      const Walk walk = walk_of(part, packed ? pack : 1);
      const auto kernel = packed ? fill_kernel<T, pack> : fill_kernel<T, 1>;
      kernel<<<blocks_of(walk.packs, packs_per_thread), threads, 0, stream>>>(reinterpret_cast<T*>(part.to),
                                                                              walk, value);
      device::check_launch("fill_kernel");
    });
  });
}

void launch_fill_heads(const View& to, const double* values, CUstream_st* stream) {
  StridedCopy all;
  all.from = reinterpret_cast<const std::byte*>(values + to.heads.begin);
  all.from_type = DType::fp64;
  all.to = to.data;
  all.to_type = to.type;
  all.rank = 4;
  all.axes = {Axis{to.batch, 0, to.batch_stride}, Axis{to.rows, 0, to.row_stride},
              Axis{to.heads.size(), 1, to.head_stride}, Axis{to.width, 0, 1}};
  in_parts(all, [&](const StridedCopy& part) {
    with_type(to.type, [&](auto* element) {
      using T = std::remove_pointer_t<decltype(element)>;
      const Walk walk = walk_of(part, 1);
      fill_heads_kernel<<<blocks_of(walk.packs, 1), threads, 0, stream>>>(
          reinterpret_cast<T*>(part.to), walk, reinterpret_cast<const double*>(part.from));
      device::check_launch("fill_heads_kernel");
    });
  });
}

}  // namespace usp::kernels::cuda
