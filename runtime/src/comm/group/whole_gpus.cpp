// SPDX-License-Identifier: Apache-2.0
#include "whole_gpus.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace usp::comm {
namespace {

/// As it travels.
struct Instance {
  std::array<char, 16> uuid{};
  std::array<char, 80> mig{};  ///< the name of a MIG instance; otherwise empty
};

/// The driver names instances such as "NVIDIA H200 MIG 3g.71gb".
[[nodiscard]] bool is_mig(const std::string& name) {
  return name.find(" MIG ") != std::string::npos;
}

}  // namespace

void require_whole_gpus(Communicator& control, const GpuIdentity& mine) {
  Instance instance;
  instance.uuid = mine.uuid;
  if (is_mig(mine.name))
    std::copy_n(mine.name.begin(), std::min(mine.name.size(), instance.mig.size() - 1), instance.mig.begin());
  std::vector<Instance> all(static_cast<std::size_t>(control.size()));
  control.all_gather(&instance, all.data(), sizeof instance);
  const auto differs = [&](const Instance& other) { return other.uuid != all.front().uuid; };
  if (std::none_of(all.begin(), all.end(), differs)) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].mig[0] != '\0')
      throw EnvironmentError(
          fmt::format("rank {} is on a MIG instance ({}), which reaches no other GPU or instance; give every "
                      "rank a whole GPU (nvidia-smi -mig 0), or all ranks the same instance",
                      rank, all[rank].mig.data()));
}

}  // namespace usp::comm
