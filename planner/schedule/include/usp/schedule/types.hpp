// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace usp {

using i64 = std::int64_t;
/// A product of two counts of tokens, which 64 bits do not hold.
__extension__ using i128 = __int128;

/// Half-open range of indices.
struct Range {
  i64 begin = 0;
  i64 end = 0;
  [[nodiscard]] i64 size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }
  friend bool operator==(const Range& a, const Range& b) { return a.begin == b.begin && a.end == b.end; }
};

/// Element types of tensors and of the wire.
enum class DType : std::uint8_t { bf16, fp16, fp32, fp64 };

[[nodiscard]] constexpr i64 bytes_of(DType type) {
  return type == DType::fp64 ? 8 : type == DType::fp32 ? 4 : 2;
}

/// The type in which O, LSE, dQ, dK and dV are accumulated for inputs of a type.
[[nodiscard]] constexpr DType accumulator_of(DType io) {
  return io == DType::fp64 ? DType::fp64 : DType::fp32;
}

enum class Tensor : std::uint8_t { q, k, v, o, lse, d_o, delta, dq, dk, dv };
inline constexpr std::size_t tensor_count = static_cast<std::size_t>(Tensor::dv) + 1;

/// Where a tensor's rows lie in the course of a pass.
///   home        the layout of the caller: all heads of the rank's own tokens
///   row         after the Ulysses exchange: the rank's heads of all tokens of its ring row
///   ring0/1     a KV block that travels along the (inner) ring, double buffered
///   outer0/1    a KV block that travels along the outer ring of a double ring
///   all         every remote KV block at once (all_gather_kv)
///   acc*        partial dK/dV of a remote block, on their way home
///   stage       an arrival that still has to be added or merged
enum class BufferSlot : std::uint8_t {
  home,
  row,
  ring0,
  ring1,
  outer0,
  outer1,
  all,
  acc0,
  acc1,
  acc_outer0,
  acc_outer1,
  stage
};

inline constexpr std::size_t place_count = static_cast<std::size_t>(BufferSlot::stage) + 1;

struct BufferName {
  Tensor tensor = Tensor::q;
  BufferSlot place = BufferSlot::home;
  friend bool operator==(BufferName a, BufferName b) { return a.tensor == b.tensor && a.place == b.place; }
};

/// A GEMM's beta: overwrite is 0, accumulate is 1.
enum class WriteMode : std::uint8_t { overwrite, accumulate };

enum class Pass : std::uint8_t { forward, backward };

/// Which tokens a ring row owns.
///   contiguous  equal ranges                        (causal work is uneven)
///   zigzag      chunks r and 2R-1-r of 2R           (causal work is even)
///   striped     every R-th token
///   balanced    equal chunks dealt to rows by causal area of their documents, greatest first
enum class LayoutKind : std::uint8_t { contiguous, zigzag, striped, balanced };

/// How a partial dK/dV reaches its owner.
///   circulate  travels with its block while a later ring rank adds to it, then returns
///   direct     goes straight home after every unit; the owner adds in a fixed order
///   cycle      as circulate, and the own block's gradient travels the whole circle too: R hops, as the
///              public zigzag ring kernels do (kept to price other implementations)
enum class DkvReturn : std::uint8_t { circulate, direct, cycle };

/// Boundary of buffers in workspace, saved state and the memory of arenas, in bytes.
inline constexpr i64 buffer_alignment = 256;
[[nodiscard]] constexpr i64 align_buffer(i64 bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

/// A position difference that no mask reaches.
inline constexpr i64 unbounded = i64{1} << 40;

}  // namespace usp
