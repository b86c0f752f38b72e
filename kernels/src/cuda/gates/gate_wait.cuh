// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/gate.hpp"

#include <cstdint>

/// Waits at gates, and completions, by one thread of a kernel.
namespace usp::kernels::gates {

/// Polls before the thread rests between them, for times that double, and polls from one look at the watch to
/// the next, about two milliseconds: `stop` and `fault` may be host memory, and reads of it by all
/// multiprocessors every 64 polls were seen to halve the rate of copies from there (H200).
inline constexpr unsigned busy_polls = 32, polls_per_look = 1024, first_rest_ns = 64, longest_rest_ns = 1024;

[[nodiscard]] __device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(value) : "l"(word) : "memory");
  return value;
}
[[nodiscard]] __device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];\n" : "=r"(value) : "l"(word) : "memory");
  return value;
}
/// Adds to a word of this GPU behind all that came before, and returns what it held.
[[nodiscard]] __device__ __forceinline__ unsigned add_release(unsigned* word, unsigned value) {
  unsigned held;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;\n"
               : "=r"(held)
               : "l"(word), "r"(value)
               : "memory");
  return held;
}
[[nodiscard]] __device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(time));
  return time;
}

/// Whether a wait that began at `begin_ns` is given up; says so in the watch's word. Of threads that give up
/// at once any one is heard: host memory has no atomic operations on all buses.
[[nodiscard]] __device__ __forceinline__ bool is_given_up(const GateWatch& watch, std::uint64_t begin_ns,
                                                          int block) {
  if (watch.fault != nullptr && load_relaxed(watch.fault) != 0) return true;
  auto reason = GateFault::Reason::none;
  if (watch.limit_ns > 0 && now_ns() - begin_ns >= static_cast<std::uint64_t>(watch.limit_ns))
    reason = GateFault::Reason::late;
  if (watch.stop != nullptr && load_relaxed(watch.stop) != 0) reason = GateFault::Reason::stopped;
  if (reason == GateFault::Reason::none) return false;
  if (watch.fault != nullptr) {
    const std::uint32_t word = static_cast<std::uint32_t>(reason) << 16 | static_cast<std::uint32_t>(block);
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;\n" ::"l"(watch.fault), "r"(word) : "memory");
  }
  return true;
}

/// Waits until the gate opens, then true: what its transfer wrote may be read, by tensor copies too. False:
/// the wait was given up. One thread.
[[nodiscard]] __device__ __forceinline__ bool await(const Gate& gate, const GateWatch& watch, int block) {
  unsigned rest_ns = first_rest_ns;
  std::uint64_t begin_ns = 0;
#pragma unroll 1
  for (unsigned polls = 1;; ++polls) {
    if (static_cast<std::int32_t>(load_acquire(gate.flag) - gate.value) >= 0) break;
    if (polls == 1) begin_ns = now_ns();
    if (polls % polls_per_look == 0 && is_given_up(watch, begin_ns, block)) return false;
    if (polls < busy_polls) continue;
    __nanosleep(rest_ns);
    if (rest_ns < longest_rest_ns) rest_ns *= 2;
  }
#if __CUDA_ARCH__ >= 900
  // The flag was seen by the generic proxy; the block is read by the asynchronous one.
  asm volatile("fence.proxy.async;\n" ::: "memory");
#endif
  return true;
}

/// Sets the flag of a block whose gradients are written: before this call, or before releases that it has
/// seen. One thread. Where some wait was given up, the watch's word has said so before what came of it was
/// counted as written.
__device__ __forceinline__ void complete(const Completion& completion, const GateWatch& watch) {
  asm volatile("fence.acq_rel.sys;\n" ::: "memory");
  if (watch.fault != nullptr && load_relaxed(watch.fault) != 0) return;
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;\n" ::"l"(completion.flag), "r"(completion.value)
               : "memory");
}

}  // namespace usp::kernels::gates
