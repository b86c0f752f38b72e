// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tile_ops.hpp"

namespace usp::kernels::cpu {

const TileOps<float>& generic_float();
const TileOps<double>& generic_double();
const TileOps<float>& avx2_float();
const TileOps<double>& avx2_double();
const TileOps<float>& avx512_float();
const TileOps<double>& avx512_double();

}  // namespace usp::kernels::cpu
