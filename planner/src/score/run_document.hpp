// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"

namespace usp {

/// Keys of what usp run, usp bench and usp bench --gpu print with --json. Throws InvalidInput for another
/// format or version, a key that the format does not have, one that is absent, and a value of another type.
void check_run_document(ObjectReader& top);

}  // namespace usp
