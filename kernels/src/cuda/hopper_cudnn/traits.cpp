// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/backend.hpp"

namespace usp {

const BackendTraits hopper_cudnn_traits = {.word = "hopper_cudnn",
                                           .display_name = "hopper with cuDNN",
                                           .summary = "forward by hopper, backward by cudnn",
                                           .on_gpu = true,
                                           .rounds_results = true,
                                           .preference = 2,
                                           .fallback = &hopper_traits,
                                           .forward = &hopper_traits,
                                           .backward = &cudnn_traits};

}  // namespace usp
