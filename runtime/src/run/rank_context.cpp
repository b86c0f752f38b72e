// SPDX-License-Identifier: Apache-2.0
#include "rank_context.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/devices.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <string>

namespace usp {
namespace {

[[nodiscard]] const kernels::KernelFactory& factory_named(const std::string& name) {
  const kernels::KernelFactory* const factory = kernels::find_factory(name);
  if (factory == nullptr)
    throw UsageError(fmt::format("--kernel: '{}' is not one of {}", name, kernels::kernel_words()));
  return *factory;
}

}  // namespace

std::string kernel_name(const AttentionPlan& plan, const RunOptions& options) {
  return options.kernel.empty() ? std::string(word_of(plan.backend)) : options.kernel;
}

int device_of(int rank, const std::vector<int>& devices) {
  const int count = devices.empty() ? device::device_count() : static_cast<int>(devices.size());
  if (device::device_count() == 0)
    throw EnvironmentError(
        device::has_cuda()
            ? "this process sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES, or run with "
              "--device cpu"
            : "this build has no CUDA support; configure with -DUSP_CUDA=ON, or run with --device cpu");
  return devices.empty() ? rank % count : devices[static_cast<std::size_t>(rank % count)];
}

void check_machine(const AttentionPlan& plan, const RunOptions& options) {
  const std::string name = kernel_name(plan, options);
  if (!runs_on_gpu(plan, options)) {
    (void)factory_named(name);
    if (!options.devices.empty())
      throw UsageError(
          fmt::format("--devices names GPUs, which the {} kernel does not use; leave it out", name));
    return;
  }
  (void)device_of(0, options.devices);
  for (const int device : options.devices) (void)device::device_info(device);
}

RankContext::RankContext(const AttentionPlan& plan, const RunOptions& options, comm::Communicator& control) {
  const std::string name = kernel_name(plan, options);
  if (!runs_on_gpu(plan, options)) {
    kernel_ = factory_named(name).make(kernels::host_memory(), options.deterministic);
    messages_ = comm::make_message_data_plane(control);
    return;
  }
  stream_.emplace(device_of(comm::local_rank().value_or(control.rank()), options.devices));
  memory_ = kernels::make_cuda_memory(*stream_);
  kernel_ = factory_named(name).make(*memory_, options.deterministic);
  mesh_.emplace(control, plan.mesh, *stream_,
                comm::AxisTransports{options.ring_transport, options.ulysses_transport});
}

std::string RankContext::device() const {
  if (!stream_) return "";
  return fmt::format("GPU {} ({})", stream_->device(), device::device_info(stream_->device()).name);
}

Mirror::Mirror(kernels::Memory& memory, HostTensor& host)
    : memory_(&memory), host_(&host), view_(host.view()) {
  if (memory.stream() == nullptr) return;
  const auto bytes = static_cast<i64>(host.bytes().size());
  copy_ = memory.make_arena();
  copy_->reserve(bytes);
  memory.from_host(copy_->data(), host.bytes().data(), bytes);
  memory.synchronize();
  view_.data = copy_->data();
}

void Mirror::fetch() {
  if (copy_ == nullptr) return;
  memory_->to_host(host_->bytes().data(), copy_->data(), static_cast<i64>(host_->bytes().size()));
  memory_->synchronize();
}

}  // namespace usp
