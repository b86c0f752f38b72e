// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"

namespace usp::kernels {

/// For host backends, which keep the state in its own type: writes the empty state of a overwrite call, so
/// that it goes on like any other.
void begin_empty(const AttendArgs& args);
void begin_empty(const AttendGradArgs& args);

}  // namespace usp::kernels
