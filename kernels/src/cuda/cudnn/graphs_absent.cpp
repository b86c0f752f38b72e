// SPDX-License-Identifier: Apache-2.0
// Replaces the cuDNN graphs in a build that did not find the headers of cuDNN.
#include "graphs.hpp"

#include "usp/base/error.hpp"

namespace usp::kernels::cudnn {

std::unique_ptr<Library> open_library() {
  throw EnvironmentError(
      "this build has no cuDNN: its headers or those of cudnn-frontend were not found; run ./usp.sh "
      "install-cuda, set CUDNN_ROOT to a folder with include/cudnn.h, and configure again");
}

}  // namespace usp::kernels::cudnn
