// SPDX-License-Identifier: Apache-2.0
#include "peer_rates.hpp"

#include "process_sharing.hpp"

#include "usp/device/check.cuda.hpp"

#include <algorithm>
#include <cuda_runtime_api.h>

namespace usp::comm {
namespace {

constexpr i64 probe_bytes = i64{64} << 20;
constexpr int probes = 3;  ///< the first opens the way

[[nodiscard]] double best_rate(std::byte* to, const std::byte* from, const device::Stream& stream) {
  const device::Event begin(stream.device(), device::EventUse::timing),
      end(stream.device(), device::EventUse::timing);
  double best = 0;
  for (int i = 0; i < probes; ++i) {
    begin.record(stream.get());
    device::check_cuda(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(probe_bytes), cudaMemcpyDefault, stream.get()),
        "a copy from another process");
    end.record(stream.get());
    best = std::max(best, static_cast<double>(probe_bytes) / device::seconds_between(begin, end));
  }
  return best;
}

}  // namespace

std::vector<PeerRate> measure_peer_rates(Communicator& control, int device,
                                         const std::vector<bool>& same_device) {
  const int ranks = control.size(), me = control.rank();
  const device::DeviceScope scope(device);
  std::vector<PeerRate> rates;
  const device::DeviceBuffer source(device, probe_bytes), target(device, probe_bytes);
  const device::Stream stream(device);
  device::set_device_bytes(source.data(), 0, probe_bytes, stream.get());
  stream.synchronize();
  const cudaIpcMemHandle_t mine = share(source, device);
  std::vector<cudaIpcMemHandle_t> handles(static_cast<std::size_t>(ranks));
  control.all_gather(&mine, handles.data(), sizeof mine);
  for (int away = 1; away < ranks; ++away) {
    const int peer = (me + away) % ranks;
    const PeerMemory from(handles[static_cast<std::size_t>(peer)], device);
    control.barrier();
    rates.push_back(
        {peer, same_device[static_cast<std::size_t>(peer)], best_rate(target.data(), from.data(), stream)});
  }
  control.barrier();  // peers have closed this rank's memory
  std::sort(rates.begin(), rates.end(), [](const PeerRate& a, const PeerRate& b) { return a.peer < b.peer; });
  return rates;
}

}  // namespace usp::comm
