// SPDX-License-Identifier: Apache-2.0
#include "rank_device.hpp"

#include "../run/rank_context.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/copy_engine.hpp"
#include "usp/comm/nccl.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <fmt/format.h>

#include <utility>

namespace usp::measure {
namespace {

std::unique_ptr<comm::DataPlane> make_plane(std::optional<Transport> transport, comm::Communicator& control,
                                            const std::optional<device::CallStream>& stream) {
  if (!transport) return comm::make_message_data_plane(control);
  if (*transport == Transport::copy_engine) return comm::make_copy_engine_data_plane(control, *stream);
  return comm::make_message_data_plane(comm::make_nccl_communicator(control, *stream), control);
}

/// Contiguous bytes of a row that goes to one rank: eight heads of 128 elements of two bytes; on a host, two
/// heads of 64 elements of four.
constexpr i64 device_run_bytes = 2048, host_run_bytes = 512;

ExchangeShape shape_of(std::optional<Transport> transport) {
  if (!transport) return {host_run_bytes, true};
  // What NCCL sends is packed by kernels that the planner prices beside it.
  return {device_run_bytes, *transport == Transport::copy_engine};
}

}  // namespace

RankDevice::RankDevice(const CalibrateOptions& options, bool on_gpu, comm::Communicator& control)
    : control_(control) {
  if (!on_gpu) {
    memory_ = &kernels::host_memory();
    return;
  }
  if (device::device_count() == 0)
    throw EnvironmentError(fmt::format(
        "{}; to calibrate the cores of this host, leave out --device, --devices and backends of "
        "GPUs",
        device::has_cuda()
            ? "this process sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES"
            : "this build has no CUDA support; configure with -DUSP_CUDA=ON on a machine of GPUs"));
  const int ordinal = device_of(comm::local_rank().value_or(control.rank()), options.devices);
  stream_.emplace(ordinal);
  own_memory_ = kernels::make_cuda_memory(*stream_);
  memory_ = own_memory_.get();
  card_ = Card{device::device_info(ordinal), device::card_state(ordinal)};
}

kernels::AttentionKernel& RankDevice::kernel(const std::string& word) {
  std::unique_ptr<kernels::AttentionKernel>& made = kernels_[word];
  if (made == nullptr) {
    const kernels::KernelFactory* const factory = kernels::find_factory(word);
    if (factory == nullptr) throw InternalError("a calibration names a kernel that is none: " + word);
    made = factory->make(*memory_, false);
  }
  return *made;
}

Lane& RankDevice::lane(std::optional<Transport> transport) {
  const auto known = lanes_.find(transport);
  if (known != lanes_.end()) return known->second;
  std::unique_ptr<comm::DataPlane> plane = make_plane(transport, control_, stream_);
  ExchangeMemory memory(*plane, *memory_, shape_of(transport));
  return lanes_.emplace(transport, Lane{std::move(plane), std::move(memory)}).first->second;
}

}  // namespace usp::measure
