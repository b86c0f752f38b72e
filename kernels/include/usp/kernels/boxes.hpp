// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"

/// Layout and type change fused into one copy. A box of a view travels in the order row, batch, head,
/// element: the payload order of every message.
namespace usp {

/// Rows x (global) heads of a view, all batch rows.
struct BoxOf {
  Range rows;
  Range heads;
};

enum class Land : std::uint8_t { put, add };

/// Converts between any two of bf16, fp16, fp32 and fp64 (to nearest even); `add` sums in the widest of
/// fp32 and both types. Same types copy bit for bit.
/// Box to box of equal shape, in one process.
void copy_box(ConstView from, BoxOf source, View to, BoxOf target, Land land);
/// Box to contiguous payload of `wire` elements; returns the end of what was written.
std::byte* pack_box(ConstView from, BoxOf box, DType wire, std::byte* payload);
/// Contiguous payload to box; returns the end of what was read.
const std::byte* unpack_box(const std::byte* payload, DType wire, View to, BoxOf box, Land land);
/// Sets all elements of a view to a value.
void fill(View to, double value);

}  // namespace usp
