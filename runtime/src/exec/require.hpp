// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <string>

namespace usp {

/// Throws UsageError unless the condition holds.
inline void require(bool holds, const std::string& problem) {
  if (!holds) throw UsageError(problem);
}

}  // namespace usp
