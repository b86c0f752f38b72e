// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/gate.hpp"

struct CUstream_st;

namespace usp::kernels::cuda {

/// What the stream does next starts once the gate is open or the wait is given up; the stream's device is
/// current. By one thread of a kernel: unlike a wait of the stream it looks at the watch, and a copy behind
/// it in a hardware queue is not held up.
void launch_await(const Gate& gate, int block, const GateWatch& watch, CUstream_st* stream);

/// Sets the flag behind what the stream has done, unless a wait was given up.
void launch_complete(const Completion& completion, const GateWatch& watch, CUstream_st* stream);

}  // namespace usp::kernels::cuda
