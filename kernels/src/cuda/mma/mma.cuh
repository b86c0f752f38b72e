// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/element.cuh"

#include <cstdint>
#include <type_traits>

/// Warp-level building blocks of sm_80 and up: 16-byte asynchronous copies into swizzled tiles of shared
/// memory, fragments by ldmatrix, products by mma.sync m16n8k16 with fp32 sums.
namespace usp::kernels::mma {

using namespace tiles;

/// 16 bytes, of which only `bytes` (0 or 16) are read; the rest is zero.
__device__ __forceinline__ void copy16(std::uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(bytes));
}
__device__ __forceinline__ void copy4(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared), "l"(global));
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

__device__ __forceinline__ void load_fragment(std::uint32_t (&r)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void load_fragment_transposed(std::uint32_t (&r)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t shared, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(shared), "r"(x) : "memory");
}
/// Waits for `threads` threads that name the same barrier (not 0, which is __syncthreads()).
__device__ __forceinline__ void wait_for_group(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// Calls body(constant) for 0 .. count - 1.
template <int count, int at = 0, class Body>
__device__ __forceinline__ void unroll(const Body& body) {
  if constexpr (at < count) {
    body(std::integral_constant<int, at>());
    unroll<count, at + 1>(body);
  }
}

/// c += a * b for one 16 x 8 block and a depth of 16.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply<Bf16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                               std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<Fp16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                               std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A tile of rows of D 16-bit elements in shared memory. The 16-byte chunks of a row are permuted so that
/// eight rows of one column of chunks lie in different banks.
template <int D>
struct Swizzle {
  static_assert(D % 32 == 0, "rows are permuted in groups of four or eight chunks");
  static constexpr int pitch = D * 2;
  static constexpr int chunks = D / 8;
  static __device__ __forceinline__ int key(int row) { return D % 64 == 0 ? row & 7 : (row >> 1) & 3; }
  static __device__ __forceinline__ std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * pitch + ((chunk ^ key(row)) << 4));
  }
};

/// Which 16-byte row piece each lane names to ldmatrix.x4: the four 8 x 8 blocks go down the rows first, then
/// along the columns, or the other way round.
enum class Blocks { down, along };

/// A lane's addresses in a swizzled tile: constants of the unrolled loops go into immediate operands. Columns
/// start at `chunk`; `aligned` promises that it shares no bit with the constant chunks.
template <int D, bool aligned = true>
class LaneAddress {
 public:
  __device__ __forceinline__ LaneAddress(std::uint32_t tile, Blocks order, int row, int chunk) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const bool down = order == Blocks::down;
    const int r = row + (down ? lane & 15 : (lane & 7) + ((lane >> 4) << 3));
    const int half = down ? lane >> 4 : (lane >> 3) & 1;
    base_ = tile + static_cast<std::uint32_t>(r * Swizzle<D>::pitch);
    key_ = static_cast<std::uint32_t>(half ^ Swizzle<D>::key(r)) << 4;
    if (aligned)
      key_ ^= static_cast<std::uint32_t>(chunk) << 4;
    else
      chunk_ = static_cast<std::uint32_t>(chunk) << 4;
  }
  /// Rows in steps of 8, chunks in steps of 2.
  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    const std::uint32_t column = static_cast<std::uint32_t>(chunk) << 4;
    const std::uint32_t place = aligned ? column ^ key_ : (column + chunk_) ^ key_;
    return base_ + place + static_cast<std::uint32_t>(row * Swizzle<D>::pitch);
  }

 private:
  std::uint32_t base_, key_, chunk_ = 0;
};

/// Copies rows of up to D elements into a tile; rows from `rows` and chunks from `chunks` on become zero.
template <int Rows, int D, int Threads>
__device__ __forceinline__ void load_tile(std::uint32_t tile, const char* global, std::int64_t row_bytes,
                                          int rows, int chunks) {
  constexpr int per_row = D / 8;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Threads % per_row == 0) {
    constexpr int step = Threads / per_row;
    const int chunk = thread % per_row, first = thread / per_row;
    const char* from = global + first * row_bytes + chunk * 16;
    const bool inside = chunk < chunks;
#pragma unroll
    for (int i = 0; i < Rows / step; ++i) {
      const int row = first + i * step;
      copy16(tile + Swizzle<D>::offset(row, chunk), from, inside && row < rows ? 16 : 0);
      from += step * row_bytes;
    }
  } else {
    static_assert(Rows * per_row % Threads == 0, "every thread copies alike");
#pragma unroll
    for (int i = 0; i < Rows * per_row / Threads; ++i) {
      const int at = thread + i * Threads, row = at / per_row, chunk = at % per_row;
      copy16(tile + Swizzle<D>::offset(row, chunk), global + row * row_bytes + chunk * 16,
             chunk < chunks && row < rows ? 16 : 0);
    }
  }
}

}  // namespace usp::kernels::mma
