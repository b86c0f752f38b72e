// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"

/// Layout and type change fused into one copy. A region of a view travels in the order row, batch, head,
/// element: the payload order of every message.
namespace usp::kernels {

/// Rows x (global) heads of a view, all batch rows.
struct ViewRegion {
  Range rows;
  Range heads;
};

/// Converts between any two of bf16, fp16, fp32 and fp64 (to nearest even); `accumulate` sums in the widest
/// of fp32 and both types. Same types copy bit for bit. Region to region of equal shape, in one process.
void copy_region(ConstView from, ViewRegion source, View to, ViewRegion target, WriteMode mode);
/// Region to contiguous payload of `wire` elements; returns the end of what was written.
std::byte* pack_region(ConstView from, ViewRegion region, DType wire, std::byte* payload);
/// Contiguous payload to region; returns the end of what was read.
const std::byte* unpack_region(const std::byte* payload, DType wire, View to, ViewRegion region,
                               WriteMode mode);
/// Sets all elements of a view to a value.
void fill(View to, double value);

}  // namespace usp::kernels
