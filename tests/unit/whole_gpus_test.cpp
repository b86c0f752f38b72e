// SPDX-License-Identifier: Apache-2.0
#include "comm/group/whole_gpus.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

namespace usp::comm {
namespace {

[[nodiscard]] GpuIdentity gpu(const std::string& name, char number) {
  GpuIdentity identity{name, {}};
  identity.uuid[0] = number;
  return identity;
}

TEST(WholeGpus, RanksOnWholeGpusAndThoseThatShareOneGoOn) {
  run_threads(3, {}, [](Communicator& control) {
    require_whole_gpus(control, gpu("NVIDIA H200", static_cast<char>(control.rank())));
    require_whole_gpus(control, gpu("NVIDIA H200", 7));
    require_whole_gpus(control, gpu("NVIDIA H200 MIG 3g.71gb", 7));
  });
}

TEST(WholeGpus, AnInstanceBesideOthersIsRefusedByNameOnEveryRank) {
  run_threads(3, {}, [](Communicator& control) {
    const int rank = control.rank();
    try {
      require_whole_gpus(control,
                         gpu(rank == 1 ? "NVIDIA H200 MIG 3g.71gb" : "NVIDIA H200", static_cast<char>(rank)));
      ADD_FAILURE();
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 is on a MIG instance (NVIDIA H200 MIG 3g.71gb)"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace usp::comm
