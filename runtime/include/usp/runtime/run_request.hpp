// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/transport.hpp"
#include "usp/schedule/types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp {

/// The question of `usp run` and `usp bench`, which their JSON echoes under the key "request". What a verb
/// has no flag for keeps its default.
struct RunRequest {
  std::string plan_digest;     ///< of the plan file
  std::size_t layer = 0;       ///< index into PlanFile::layers
  std::vector<i64> documents;  ///< lengths of another batch; empty: those of the plan
  bool forward_only = false;
  std::uint64_t seed = 0;    ///< of the random tensors and of dropout
  std::string device;        ///< "cpu" or "cuda"; empty: by the plan's backend
  std::string kernel;        ///< empty: the plan's backend
  std::vector<int> devices;  ///< GPUs of the ranks; empty: all there are
  std::optional<Transport> ulysses_transport, ring_transport;  ///< empty: those of the plan
  bool deterministic = false;
  double watchdog_s = 0;
  bool trust_network = false;
  int repeat = 1;

  std::string q, k, v, d_out;       ///< files of tensors; empty: random
  bool verify = false;              ///< compare with dense attention in fp64
  std::optional<double> tolerance;  ///< of whole tensors; empty: by dtype
  bool dry_run = false;
  bool debug_nan = false;
};

}  // namespace usp
