// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/comm/copy_engine.hpp"

namespace usp::comm {

std::unique_ptr<DataPlane> make_copy_engine_data_plane(Communicator&, const device::CallStream&,
                                                       const CopyEngineOptions&) {
  throw EnvironmentError(
      "this build has no CUDA support: there are no copy engines; configure with -DUSP_CUDA=ON");
}

}  // namespace usp::comm
