// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"

#include <cuda.h>

namespace usp::kernels::hopper {

/// How tensor copies read a view of 16-bit elements whose rows lie on boundaries of 16 bytes: boxes of 64
/// columns by `heads` heads by `rows` rows, swizzled as wgmma reads them; axes (column, head, row, batch),
/// heads counted from the view's first. Throws EnvironmentError where the driver refuses the view.
[[nodiscard]] CUtensorMap row_boxes(const ConstView& view, int rows, int heads = 1);
/// The same of fp32 elements, in boxes of 32 columns: where sums are added.
[[nodiscard]] CUtensorMap sum_boxes(const ConstView& view, int rows);

}  // namespace usp::kernels::hopper
