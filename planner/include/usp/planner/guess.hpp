// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace usp {

/// An input without a measurement on this machine that decides the first place: within its plausible range
/// another plan leads.
struct GuessedInput {
  std::string input;        ///< "links of a PCIe host, curves of l40s"
  std::string provenance;   ///< "guess", or "borrowed" from another machine
  double factor = 1;        ///< of the assumed rate, at the end of the range where first place changes
  std::string first;        ///< the plan that is first there
  std::string measurement;  ///< command that measures the input
};

}  // namespace usp
