// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/element.cuh"

#include <cstdint>
#include <cuda.h>

/// What the sm_90a kernels need of PTX beside wgmma: barriers in shared memory, tensor copies, register
/// counts, fences between the generic and the asynchronous proxy.
namespace usp::kernels::hopper {

using namespace tiles;

/// The memory of a block, on the boundary that the 128-byte swizzle asks for; its address is a constant.
extern __shared__ __align__(1024) char block_memory[];
__device__ __forceinline__ std::uint32_t block_address(int offset) {
  return shared_address(block_memory) + static_cast<std::uint32_t>(offset);
}

/// Comes before every operation on a barrier. Test builds that define USP_BARRIER_JITTER sleep here, each
/// warp for a time of its own of up to two microseconds, so that roles meet in other orders than on an idle
/// GPU.
__device__ __forceinline__ void jitter() {
#ifdef USP_BARRIER_JITTER
  std::uint32_t noise;
  asm volatile("mov.u32 %0, %%clock;\n" : "=r"(noise));
  noise = (noise ^ (threadIdx.x >> 5) * 0x9e3779b9u) * 0x2545f491u;
  __nanosleep(noise >> 22);  // sleeps up to twice as many nanoseconds
#endif
}

/// An mbarrier by its address in shared memory.
struct Barrier {
  std::uint32_t at;

  __device__ __forceinline__ void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(at), "r"(arrivals));
  }
  __device__ __forceinline__ void arrive() const {
    jitter();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(at) : "memory");
  }
  /// Arrives, and has the phase wait for so many bytes of tensor copies.
  __device__ __forceinline__ void arrive_with_bytes(int bytes) const {
    jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(at), "r"(bytes) : "memory");
  }
  [[nodiscard]] __device__ __forceinline__ bool is_over(std::uint32_t parity) const {
    std::uint32_t over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(at), "r"(parity)
        : "memory");
    return over != 0;
  }
  /// Waits about so long for it.
  [[nodiscard]] __device__ __forceinline__ bool is_over(std::uint32_t parity, unsigned limit_ns) const {
    std::uint32_t over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\nselp.b32 %0, 1, 0, "
        "p;\n}\n"
        : "=r"(over)
        : "r"(at), "r"(parity), "r"(limit_ns)
        : "memory");
    return over != 0;
  }
  /// Waits until the phase of this parity is over.
  __device__ __forceinline__ void wait(std::uint32_t parity) const {
    jitter();
    while (!is_over(parity)) {
    }
  }
};

/// Place and parity in a ring of buffers.
template <int count>
struct Ring {
  int place = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == count) place = 0, parity ^= 1;
  }
};
template <int count>
[[nodiscard]] __device__ __forceinline__ Ring<count> next_of(Ring<count> ring) {
  ring.advance();
  return ring;
}

/// Barriers that are initialized become visible to tensor copies; a barrier of the block comes next.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
/// Ordinary stores to shared memory come before what tensor cores and tensor copies read.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

template <int registers>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
}

/// So many bits from the lowest on; none below 0, all from 32 on.
__device__ __forceinline__ std::uint32_t low_bits(int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;\n" : "=r"(bits) : "r"(max(count, 0)));
  return bits;
}

/// threadIdx.x, read anew: where registers are scarce, what follows from it is not kept.
__device__ __forceinline__ int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

/// Named barriers: threads that wait, and threads that only arrive.
__device__ __forceinline__ void named_barrier_wait(int barrier, int threads) {
  jitter();
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  jitter();
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// Coordinates of a box: (column, head, row, batch).
struct BoxPlace {
  int column, head, row, batch;
};
/// Copies the box of a tensor map to shared memory; one thread issues it. Elements outside the tensor are
/// zero.
__device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap& map, BoxPlace at,
                                         Barrier full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];\n" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(full.at), "r"(at.column), "r"(at.head), "r"(at.row),
      "r"(at.batch)
      : "memory");
}
/// Adds the box in shared memory to global memory, in fp32; one thread issues it.
__device__ __forceinline__ void add_box(const CUtensorMap& map, BoxPlace at, std::uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];\n" ::"l"(reinterpret_cast<std::uint64_t>(&map)),
      "r"(from), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.batch)
      : "memory");
}
__device__ __forceinline__ void added_boxes_commit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/// The thread's additions have read shared memory; that they have reached global memory is another matter.
__device__ __forceinline__ void added_boxes_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}
__device__ __forceinline__ void added_boxes_wait() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
/// Copies four bytes to shared memory; nothing is waited for.
__device__ __forceinline__ void copy_word(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copied_words_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// Waits for the thread's own words until at most `pending` groups are on their way.
template <int pending>
__device__ __forceinline__ void copied_words_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}
/// Four 8 x 8 blocks of 16-bit elements; lane l gives the place of row l % 8 of block l / 8.
__device__ __forceinline__ void store_fragment(std::uint32_t at, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
/// Adds to neighbouring floats in global memory, which begin on a boundary of 8 bytes; nothing is waited for.
__device__ __forceinline__ void add_global_pair(float* to, float2 x) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};\n" ::"l"(to), "f"(x.x), "f"(x.y)
               : "memory");
}
/// The same of four floats, as the bits of a piece on a boundary of 16 bytes.
__device__ __forceinline__ void add_global_piece(float* to, uint4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to),
               "f"(__uint_as_float(x.x)), "f"(__uint_as_float(x.y)), "f"(__uint_as_float(x.z)),
               "f"(__uint_as_float(x.w))
               : "memory");
}
__device__ __forceinline__ void store_shared_pair(std::uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(at), "f"(x), "f"(y) : "memory");
}
}  // namespace usp::kernels::hopper
