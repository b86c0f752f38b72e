// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/kernels/numeric_types.hpp"
#include "usp/kernels/view.hpp"

namespace usp::kernels::reference {

/// Any element as fp64.
[[nodiscard]] inline double load(ConstView view, i64 b, i64 row, i64 head, i64 i) {
  const std::byte* at = view.at(b, row, head) + i * bytes_of(view.type);
  switch (view.type) {
    case DType::bf16:
      return static_cast<double>(to_float(*reinterpret_cast<const bf16*>(at)));
    case DType::fp16:
      return static_cast<double>(to_float(*reinterpret_cast<const fp16*>(at)));
    case DType::fp32:
      return static_cast<double>(*reinterpret_cast<const float*>(at));
    case DType::fp64:
      return *reinterpret_cast<const double*>(at);
  }
  throw InternalError("unknown element type");
}

}  // namespace usp::kernels::reference
