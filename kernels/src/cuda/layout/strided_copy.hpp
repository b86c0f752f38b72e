// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/regions.hpp"

#include <array>

struct CUstream_st;

namespace usp::kernels::cuda {

/// One axis of a copy; strides in elements.
struct Axis {
  i64 count = 1, from = 0, to = 0;
};

/// What regions.hpp's copies come to: elements on up to four axes, outermost first; the last one is
/// contiguous on both sides. Axes of one element are gone and axes that continue each other are one.
struct StridedCopy {
  const std::byte* from = nullptr;
  DType from_type = DType::fp32;
  std::byte* to = nullptr;
  DType to_type = DType::fp32;
  WriteMode mode = WriteMode::overwrite;
  std::array<Axis, 4> axes;
  int rank = 0;

  [[nodiscard]] i64 elements() const {
    i64 n = 1;
    for (int i = 0; i < rank; ++i) n *= axes[static_cast<std::size_t>(i)].count;
    return n;
  }
};

/// Region to region of equal shape; throws InternalError when they are not, or reach outside.
[[nodiscard]] StridedCopy region_copy(const ConstView& from, const ViewRegion& source, const View& to,
                                      const ViewRegion& target, WriteMode mode);
/// Where a region lies as a payload of `wire` elements: a view of the region alone.
template <class Byte>
[[nodiscard]] BasicView<Byte> payload_view(Byte* payload, DType wire, i64 batch, const ViewRegion& region,
                                           i64 width) {
  BasicView<Byte> v(payload, wire, batch, region.rows.size(), region.heads, width);
  v.batch_stride = region.heads.size() * width;  // rows are outermost in a payload
  v.row_stride = batch * v.batch_stride;
  return v;
}

/// Enqueues; the stream's device is current. Contiguous copies of one type are the driver's; rows at a pitch
/// are not (on an H100 its 2D copies reach 0.5 to 0.6 of a kernel's rate within one device).
void launch_copy(const StridedCopy& copy, CUstream_st* stream);
/// The same by a kernel always.
void launch_copy_kernel(const StridedCopy& copy, CUstream_st* stream);

void launch_fill(const View& to, double value, CUstream_st* stream);
/// values[h], in device memory, for every element of (global) head h.
void launch_fill_heads(const View& to, const double* values, CUstream_st* stream);

}  // namespace usp::kernels::cuda
