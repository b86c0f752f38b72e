// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx.cuh"

#include <cstdint>

/// Asynchronous products of a warpgroup: 64 rows by N columns by a depth of 16, with fp32 sums in registers.
///
/// Operands in shared memory are tiles of 64 columns: rows of 128 bytes, whose 16-byte pieces are permuted by
/// the 128-byte swizzle (a tensor copy writes them so). A wider operand is several such tiles, one behind the
/// other.
namespace usp::kernels::hopper {

/// Which way an operand's tile lies: rows along M or N, columns along K, or the other way round.
enum class Major : int { k = 0, mn = 1 };

inline constexpr int tile_columns = 64;
inline constexpr int tile_row_bytes = 2 * tile_columns;

/// An operand in shared memory, as wgmma reads it. Addresses are counted in units of 16 bytes.
class Operand {
 public:
  /// `rows` rows in each tile. Where they lie along M or N, step s is depth 16 s to 16 s + 15 and tiles
  /// follow each other along the depth; where they lie along the depth, tiles lie side by side along M or N.
  __device__ __forceinline__ Operand(std::uint32_t address, int rows)
      : low_((address & 0x3ffff) >> 4 | (static_cast<std::uint32_t>(rows * tile_row_bytes) >> 4) << 16) {}
  /// The same, so many bytes further.
  [[nodiscard]] __device__ __forceinline__ Operand moved(int bytes) const {
    Operand other = *this;
    other.low_ += static_cast<std::uint32_t>(bytes) >> 4;
    return other;
  }
  /// The descriptor of step `s`, known at compile time.
  template <Major major, int rows>
  [[nodiscard]] __device__ __forceinline__ std::uint64_t step(int s) const {
    constexpr int tile = rows * tile_row_bytes;
    const int bytes = major == Major::k ? (s / 4) * tile + (s % 4) * 32 : s * 16 * tile_row_bytes;
    constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62, eight_rows = 8 * tile_row_bytes >> 4;
    return swizzle_128 | eight_rows << 32 | (low_ + static_cast<std::uint32_t>(bytes >> 4));
  }

 private:
  std::uint32_t low_;  ///< the half of the descriptor that is no constant
};

/// Registers and shared memory that earlier instructions wrote come before the products that follow.
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/// Waits until at most `pending` groups of products are in flight.
template <int pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}

/// d (+)= a b. `adds` is false where the sum begins anew.
template <class T, int N, Major a_major, Major b_major>
struct SharedProduct;  // a and b in shared memory
template <class T, int N, Major b_major>
struct RegisterProduct;  // a in registers, b in shared memory

// Lists of registers for the shapes below, eight at a time.
#define USP_LIST_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define USP_LIST_2 USP_LIST_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define USP_LIST_3 USP_LIST_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define USP_LIST_4 USP_LIST_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define USP_LIST_5 USP_LIST_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define USP_LIST_6 USP_LIST_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define USP_LIST_7 USP_LIST_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define USP_LIST_8 USP_LIST_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define USP_LIST_9 USP_LIST_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define USP_LIST_10 USP_LIST_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define USP_LIST_11 USP_LIST_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define USP_LIST_12 USP_LIST_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define USP_LIST_13 USP_LIST_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define USP_LIST_14 USP_LIST_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define USP_LIST_15 USP_LIST_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define USP_LIST_16 USP_LIST_15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define USP_EIGHT(i)                                                                              \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define USP_SUMS_2 USP_EIGHT(0), USP_EIGHT(1)
#define USP_SUMS_3 USP_SUMS_2, USP_EIGHT(2)
#define USP_SUMS_4 USP_SUMS_3, USP_EIGHT(3)
#define USP_SUMS_5 USP_SUMS_4, USP_EIGHT(4)
#define USP_SUMS_6 USP_SUMS_5, USP_EIGHT(5)
#define USP_SUMS_8 USP_SUMS_6, USP_EIGHT(6), USP_EIGHT(7)
#define USP_SUMS_11 USP_SUMS_8, USP_EIGHT(8), USP_EIGHT(9), USP_EIGHT(10)
#define USP_SUMS_12 USP_SUMS_11, USP_EIGHT(11)
#define USP_SUMS_16 USP_SUMS_12, USP_EIGHT(12), USP_EIGHT(13), USP_EIGHT(14), USP_EIGHT(15)

// One type and width: `eights` times eight sums, then the operands' numbers.
#define USP_PRODUCTS(T, word, N, eights, o0, o1, o2, o3, o4, o5, o6)                                         \
  template <Major a_major, Major b_major>                                                                    \
  struct SharedProduct<T, N, a_major, b_major> {                                                             \
    static __device__ __forceinline__ void add(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,          \
                                               bool adds) {                                                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32." word "." word " {" USP_LIST_##eights "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3   \
                                                                   ", %" #o4 ";\n}\n"                        \
                   : USP_SUMS_##eights                                                                       \
                   : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "n"(static_cast<int>(a_major)),            \
                     "n"(static_cast<int>(b_major)));                                                        \
    }                                                                                                        \
  };                                                                                                         \
  template <Major b_major>                                                                                   \
  struct RegisterProduct<T, N, b_major> {                                                                    \
    static __device__ __forceinline__ void add(float (&d)[N / 2], const std::uint32_t* a, std::uint64_t b,   \
                                               bool adds) {                                                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32." word "." word " {" USP_LIST_##eights "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 \
                                                                   "}, %" #o4 ", p, 1, 1, %" #o6 ";\n}\n"    \
                   : USP_SUMS_##eights                                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),        \
                     "n"(static_cast<int>(b_major)));                                                        \
    }                                                                                                        \
  };
#define USP_BOTH(N, eights, ...)                     \
  USP_PRODUCTS(Bf16, "bf16", N, eights, __VA_ARGS__) \
  USP_PRODUCTS(Fp16, "f16", N, eights, __VA_ARGS__)

USP_BOTH(32, 2, 16, 17, 18, 19, 20, 21, 22)
USP_BOTH(48, 3, 24, 25, 26, 27, 28, 29, 30)
USP_BOTH(64, 4, 32, 33, 34, 35, 36, 37, 38)
USP_BOTH(80, 5, 40, 41, 42, 43, 44, 45, 46)
USP_BOTH(96, 6, 48, 49, 50, 51, 52, 53, 54)
USP_BOTH(128, 8, 64, 65, 66, 67, 68, 69, 70)
USP_BOTH(176, 11, 88, 89, 90, 91, 92, 93, 94)
USP_BOTH(192, 12, 96, 97, 98, 99, 100, 101, 102)
USP_BOTH(256, 16, 128, 129, 130, 131, 132, 133, 134)

#undef USP_BOTH
#undef USP_PRODUCTS
#undef USP_SUMS_16
#undef USP_SUMS_12
#undef USP_SUMS_11
#undef USP_SUMS_8
#undef USP_SUMS_6
#undef USP_SUMS_5
#undef USP_SUMS_4
#undef USP_SUMS_3
#undef USP_SUMS_2
#undef USP_EIGHT

}  // namespace usp::kernels::hopper
