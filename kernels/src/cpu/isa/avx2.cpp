// SPDX-License-Identifier: Apache-2.0
#define USP_VECTOR_BYTES 32
#define USP_STRIP 4
#define USP_VECTORS 3
#include "table.hpp"
#include "tables.hpp"

namespace usp::kernels::cpu {

const TileOps<float>& avx2_float() {
  return table_of<float>;
}
const TileOps<double>& avx2_double() {
  return table_of<double>;
}

}  // namespace usp::kernels::cpu
