// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/backend.hpp"

#include <memory>

namespace usp::kernels {

/// A kernel of each pass, made by their factories; `backend` names both (BackendTraits::forward, backward).
/// `memory` outlives it.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_pass_kernels(Backend backend, Memory& memory,
                                                                 bool deterministic);

}  // namespace usp::kernels
