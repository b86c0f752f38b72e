// SPDX-License-Identifier: Apache-2.0
#include "peer_rates.hpp"

#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::comm {
namespace {

/// A PCIe 5.0 slot of 16 lanes carries 63 GB/s one way.
constexpr double fastest_without_nvlink = 64e9;

[[nodiscard]] std::string gb_s(double bytes_per_s) {
  return format_fixed(bytes_per_s * 1e-9, 0);
}

}  // namespace

std::vector<std::string> rate_notes(int rank, const std::vector<PeerRate>& rates) {
  std::vector<std::string> notes;
  if (rates.empty()) return notes;
  if (rank == 0) {
    const auto [least, most] = std::minmax_element(
        rates.begin(), rates.end(),
        [](const PeerRate& a, const PeerRate& b) { return a.bytes_per_s < b.bytes_per_s; });
    notes.push_back(fmt::format("copies from other processes reach rank 0 at {}{} GB/s",
                                gb_s(least->bytes_per_s),
                                least->peer == most->peer ? "" : " to " + gb_s(most->bytes_per_s)));
  }
  for (const PeerRate& r : rates)
    if (!r.same_device && r.bytes_per_s < fastest_without_nvlink)
      notes.push_back(
          fmt::format("slow path: copies from rank {} reach rank {} at {} GB/s, by PCIe or through the host; "
                      "where nvidia-smi topo -m shows NVLink between their GPUs, look for a container or "
                      "driver that keeps them from peer access",
                      r.peer, rank, gb_s(r.bytes_per_s)));
  return notes;
}

}  // namespace usp::comm
