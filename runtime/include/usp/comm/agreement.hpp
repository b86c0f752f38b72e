// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace usp::comm {

/// One thing that all ranks must hold alike.
struct AgreedField {
  std::string name;  ///< "plan", "shape", "dtype", "layout", "batch"
  std::uint64_t digest = 0;
};

/// Collective: compares the fields of all ranks. Throws DisagreementError on every rank when one differs,
/// naming the field and the ranks that hold something other than most do.
void agree(Communicator& communicator, const std::vector<AgreedField>& fields);

}  // namespace usp::comm
