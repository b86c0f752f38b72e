// SPDX-License-Identifier: Apache-2.0
#include "tensor_map.hpp"

#include "usp/device/driver.cuda.hpp"

#include <cstdint>
#include <cudaTypedefs.h>

namespace usp::kernels::hopper {
namespace {

/// An axis of one element is never stepped along, and its stride may be anything.
[[nodiscard]] cuuint64_t stride_bytes(i64 count, i64 elements, DType type) {
  return count <= 1 ? 16 : static_cast<cuuint64_t>(elements * bytes_of(type));
}

[[nodiscard]] CUtensorMap boxes(const ConstView& view, int columns, int heads, int rows,
                                CUtensorMapDataType type) {
  if (view.elements() == 0) return {};  // nothing is copied
  static const auto encode = device::driver_call<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(view.width), static_cast<cuuint64_t>(view.heads.size()),
                              static_cast<cuuint64_t>(view.rows), static_cast<cuuint64_t>(view.batch)};
  const cuuint64_t strides[] = {stride_bytes(view.heads.size(), view.head_stride, view.type),
                                stride_bytes(view.rows, view.row_stride, view.type),
                                stride_bytes(view.batch, view.batch_stride, view.type)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(heads),
                            static_cast<cuuint32_t>(rows), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  device::check_driver(encode(&map, type, 4, const_cast<std::byte*>(view.data), sizes, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                       "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace

CUtensorMap row_boxes(const ConstView& view, int rows, int heads) {
  return boxes(view, 64, heads, rows,
               view.type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
}

CUtensorMap sum_boxes(const ConstView& view, int rows) {
  return boxes(view, 32, 1, rows, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
}

}  // namespace usp::kernels::hopper
