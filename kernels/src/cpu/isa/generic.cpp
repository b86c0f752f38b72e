// SPDX-License-Identifier: Apache-2.0
#define USP_VECTOR_BYTES 16
#define USP_STRIP 4
#define USP_VECTORS 2
#include "table.hpp"
#include "tables.hpp"

namespace usp::kernels::cpu {

const TileOps<float>& generic_float() {
  return table_of<float>;
}
const TileOps<double>& generic_double() {
  return table_of<double>;
}

}  // namespace usp::kernels::cpu
