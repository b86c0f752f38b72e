// SPDX-License-Identifier: Apache-2.0
#include "resources.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <fmt/format.h>

namespace usp::kernels::tiles {
namespace {

[[nodiscard]] int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  device::check_cuda(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

[[nodiscard]] View copy_of(const ConstView& view, DType io, Range heads) {
  return {nullptr, io, view.batch, view.rows, heads, (view.width + 7) / 8 * 8};
}

}  // namespace

bool is_read_in_place(const ConstView& view, DType io) {
  return view.type == io && view.width % 8 == 0 && divides(view, 16, 8);
}

Resources::Resources(Memory& memory, const CudaKernelOptions& options)
    : memory_(memory), options_(options), tables_(memory), device_(memory.device()) {
  if (attribute(cudaDevAttrComputeCapabilityMajor, device_) < 8)
    throw EnvironmentError(fmt::format(
        "GPU {} is older than compute capability 8.0, which the GPU kernels are made for; use the CPU",
        device_));
  shared_per_block_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_);
  shared_per_sm_ = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_);
  for (auto& arena : scratch_) arena = memory.make_scratch();
}

void Resources::make_room(const ConstView& view, DType io, Range heads, Role role) {
  if (!is_read_in_place(view, io)) reserve(role, copy_of(view, io, heads).elements() * bytes_of(io));
}

ConstView Resources::readable(const ConstView& view, DType io, Range heads, Role role) {
  if (is_read_in_place(view, io)) return view;
  View copy = copy_of(view, io, heads);
  copy.data = scratch(role);
  if (copy.width != view.width) memory_.fill(copy, 0);
  copy.width = view.width;
  const ViewRegion region{{0, view.rows}, heads};
  memory_.copy_region(view, region, copy, region, WriteMode::overwrite);
  return copy;
}

void Resources::need_shared(int bytes) const {
  if (bytes <= shared_per_block_) return;
  throw EnvironmentError(
      fmt::format("backward attention of this head dim needs {} bytes of shared memory in a block, and GPU "
                  "{} has {}; use a data-center GPU or the CPU",
                  bytes, device_, shared_per_block_));
}

}  // namespace usp::kernels::tiles
