// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace usp::topology {

/// What decides how much memory a cluster takes; a few words of a description can ask for any of it.
struct ClusterSize {
  std::int64_t hosts = 0, devices = 0, nics = 0, links = 0;
};

/// "70000 hosts; the most is 65536" for what is beyond 65,536 hosts or devices, 262,144 NICs or
/// 1,048,576 links; empty when nothing is. Asked before a cluster is laid out.
[[nodiscard]] std::string oversize(const ClusterSize& size);

/// Checks every invariant of the value type: dense ids, indices in range, sorted links with a < b, domains
/// and devices that name each other, sizes within their limits, a value exactly where the provenance is not
/// unknown. Throws InvalidInput.
void validate(const Cluster& cluster, const std::string& file);

/// The devices are not cards but ranks on the cores of their hosts: threads, or processes that `usp
/// calibrate` measured without GPUs.
[[nodiscard]] bool on_host_cores(const Cluster& cluster);

/// Connected components over NVLink (or xGMI), each ascending, ordered by their first device; a lone device
/// is its own.
[[nodiscard]] std::vector<std::vector<int>> islands(const Cluster& cluster);

}  // namespace usp::topology
