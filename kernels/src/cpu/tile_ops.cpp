// SPDX-License-Identifier: Apache-2.0
#include "tile_ops.hpp"

#include "isa/tables.hpp"

#include "usp/base/error.hpp"

namespace usp::kernels::cpu {

bool has_isa(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return true;
#if defined(USP_X86_KERNELS)
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
#endif
    default:
      return false;
  }
}

Isa best_isa() {
  for (const Isa isa : {Isa::avx512, Isa::avx2})
    if (has_isa(isa)) return isa;
  return Isa::generic;
}

const char* name_of(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "generic";
}

template <>
const TileOps<float>& tile_ops(Isa isa) {
  expects(has_isa(isa), "this machine lacks the instruction set of the kernel asked for");
#if defined(USP_X86_KERNELS)
  if (isa == Isa::avx512) return avx512_float();
  if (isa == Isa::avx2) return avx2_float();
#endif
  return generic_float();
}

template <>
const TileOps<double>& tile_ops(Isa isa) {
  expects(has_isa(isa), "this machine lacks the instruction set of the kernel asked for");
#if defined(USP_X86_KERNELS)
  if (isa == Isa::avx512) return avx512_double();
  if (isa == Isa::avx2) return avx2_double();
#endif
  return generic_double();
}

}  // namespace usp::kernels::cpu
