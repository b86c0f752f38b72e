// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

/// What rounding may do to the results of an attention call: |x - truth| <= c * u * sum of |terms|.
namespace usp::kernels {

/// u: half the distance from 1 to the next number, 2^-p of a significand of p bits. bf16 2^-8, fp16 2^-11,
/// fp32 2^-24, fp64 2^-53.
[[nodiscard]] double unit_roundoff(DType type);
/// What is smaller is rounded as if it were this; exponentials that are smaller may be 0.
[[nodiscard]] double smallest_normal(DType type);
[[nodiscard]] double max_finite(DType type);

/// c: how many roundings to `type`, each of at most u of its term, meet in one result of a pass. One number
/// per type and pass, for all shapes, meshes and backends.
///
/// bf16 and fp16, whose sums are carried in fp32: 3 roundings meet at most, and 4 leaves one for what is of
/// second order. Forward: P before it is multiplied with V, the output of one block, the output. Backward: P
/// or dS before it is multiplied, the gradient of one block, the gradient; delta, of an O that is rounded
/// twice and made of a rounded P, has terms of its own. What happens in fp32 in between counts with the u and
/// c of fp32. On the host, which rounds results alone, the greatest seen is 1.0.
///
/// fp32 and fp64: a sum of n terms has n roundings of either sign, which in vectors of several lanes and
/// blocks of keys add up to far less than n. The greatest seen on every mesh, method and layout of the tests
/// and on rows of 8,192 keys is 2.6 in fp32, and 5.4 in fp64, where the oracle rounds as much as the run; 16
/// leaves room for longer rows and for the exponential of GPUs, which is off by 4 u.
[[nodiscard]] double rounding_factor(DType type, Pass pass);

}  // namespace usp::kernels
