// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/rounding.hpp"

#include "usp/base/error.hpp"

namespace usp::kernels {
namespace {

struct Format {
  double unit, smallest, greatest;
  double forward, backward;  ///< c
};

Format format_of(DType type) {
  switch (type) {
    case DType::bf16:
      return {0x1p-8, 0x1p-126, 0x1.fep127, 4, 4};
    case DType::fp16:
      return {0x1p-11, 0x1p-14, 65504, 4, 4};
    case DType::fp32:
      return {0x1p-24, 0x1p-126, 0x1.fffffep127, 16, 16};
    case DType::fp64:
      return {0x1p-53, 0x1p-1022, 0x1.fffffffffffffp1023, 16, 16};
  }
  throw InternalError("unknown element type");
}

}  // namespace

double unit_roundoff(DType type) {
  return format_of(type).unit;
}
double smallest_normal(DType type) {
  return format_of(type).smallest;
}
double max_finite(DType type) {
  return format_of(type).greatest;
}
double rounding_factor(DType type, Pass pass) {
  return pass == Pass::forward ? format_of(type).forward : format_of(type).backward;
}

}  // namespace usp::kernels
