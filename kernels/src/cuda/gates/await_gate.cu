// SPDX-License-Identifier: Apache-2.0
#include "await_gate.hpp"
#include "gate_wait.cuh"

#include "usp/device/check.cuda.hpp"

namespace usp::kernels::cuda {
namespace {

__global__ void await_kernel(Gate gate, int block, GateWatch watch) {
  (void)gates::await(gate, watch, block);
}

__global__ void complete_kernel(Completion completion, GateWatch watch) {
  gates::complete(completion, watch);
}

}  // namespace

void launch_await(const Gate& gate, int block, const GateWatch& watch, CUstream_st* stream) {
  await_kernel<<<1, 1, 0, stream>>>(gate, block, watch);
  device::check_launch("await_kernel");
}

void launch_complete(const Completion& completion, const GateWatch& watch, CUstream_st* stream) {
  complete_kernel<<<1, 1, 0, stream>>>(completion, watch);
  device::check_launch("complete_kernel");
}

}  // namespace usp::kernels::cuda
