// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/base/env.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"

#include <cstdlib>
#include <string>

namespace usp::fuzz {

/// The variables of a launcher, one NAME=VALUE a line; others than those that are read have no effect.
inline bool launch(const std::string& text) {
  for (const EnvironmentVariable& variable : environment_variables())
    unsetenv(std::string(variable.name).c_str());
  for (const std::string& line : split_lines(text)) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0 || line.find('\0') != std::string::npos) continue;
    for (const EnvironmentVariable& variable : environment_variables())
      if (line.compare(0, equals, variable.name) == 0)
        setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
  }
  try {
    require(!(comm::mpi_launched() && comm::torchrun_launched()), "two launchers at once");
    const std::optional<int> local = comm::local_rank();
    require(!local || *local >= 0, "a local rank below zero");
    if (!comm::torchrun_launched()) {
      comm::check_rendezvous_variables();
      return local.has_value();
    }
    const comm::SocketJob job = comm::torchrun_job();
    require(job.rank >= 0 && job.rank < job.size, "a rank outside its job");
    require(job.port >= 1 && job.port <= 65535, "a port out of range");
    return true;
  } catch (const InvalidInput&) {
    return false;
  } catch (const UsageError&) {
    return false;
  } catch (const EnvironmentError&) {
    return false;
  }
}

}  // namespace usp::fuzz
