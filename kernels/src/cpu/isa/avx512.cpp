// SPDX-License-Identifier: Apache-2.0
#define USP_VECTOR_BYTES 64
#define USP_STRIP 8
#define USP_VECTORS 3
#include "table.hpp"
#include "tables.hpp"

namespace usp::kernels::cpu {

const TileOps<float>& avx512_float() {
  return table_of<float>;
}
const TileOps<double>& avx512_double() {
  return table_of<double>;
}

}  // namespace usp::kernels::cpu
