// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scratch.hpp"
#include "tile_ops.hpp"

#include "usp/kernels/attention_args.hpp"

namespace usp::kernels::cpu {

/// The calls of the contract for inputs whose state has elements T.
template <class T>
void compute(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args);
template <class T>
void compute(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args);
template <class T>
void delta(const TileOps<T>& ops, Scratch& scratch, const DeltaArgs& args);

/// Lets scratch grow to what compute() of such arguments takes.
template <class T>
void make_room(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args);
template <class T>
void make_room(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args);

}  // namespace usp::kernels::cpu
