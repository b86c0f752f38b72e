// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace usp::measure {

/// Which host each rank of a job is on.
struct Machine {
  std::vector<int> host_of;             ///< per rank
  std::vector<std::string> hosts;       ///< names, in order of their first rank
  std::vector<std::vector<int>> ranks;  ///< per host, rising
  std::vector<double> memory_bytes;     ///< per host
  std::int64_t cache_bytes =
      0;                       ///< the largest last cache of a core's on any host; a guess where none is told
  std::vector<bool> own_core;  ///< per rank: has one; of those that share a machine, as many as it has cores

  [[nodiscard]] int host_count() const { return static_cast<int>(hosts.size()); }
  /// Ranks that every host has.
  [[nodiscard]] int ranks_per_host() const;
  [[nodiscard]] int rank(int host, int local) const {
    return ranks[static_cast<std::size_t>(host)][static_cast<std::size_t>(local)];
  }
  /// More ranks than cores on some machine: emulated hosts are one.
  [[nodiscard]] bool shares_cores() const {
    return std::find(own_core.begin(), own_core.end(), false) != own_core.end();
  }
  [[nodiscard]] bool has_own_core(int rank) const {
    return own_core.empty() || own_core[static_cast<std::size_t>(rank)];
  }
  /// Of all machines.
  [[nodiscard]] int cores() const {
    return static_cast<int>(std::count(own_core.begin(), own_core.end(), true));
  }
  /// Index of a rank among those of its host.
  [[nodiscard]] int local(int rank) const;
};

/// Collective: hosts are told apart by their names, machines by their boot, whose cores are all that some
/// rank on them may run on.
[[nodiscard]] Machine machine_of(comm::Communicator& control);

}  // namespace usp::measure
