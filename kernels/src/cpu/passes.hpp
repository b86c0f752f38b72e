// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scratch.hpp"
#include "tile_ops.hpp"

#include "usp/kernels/attention_kernel.hpp"

namespace usp::kernels::cpu {

/// The calls of the contract for inputs whose state has elements T.
template <class T>
void attend(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args);
template <class T>
void delta(const TileOps<T>& ops, Scratch& scratch, const DeltaArgs& args);
template <class T>
void attend_grad(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args);

}  // namespace usp::kernels::cpu
