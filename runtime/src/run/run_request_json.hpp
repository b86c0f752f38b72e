// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/runtime/run_request.hpp"

namespace usp {

/// Keys are the names of the fields; an empty field is null.
[[nodiscard]] Json request_json(const RunRequest& request);

}  // namespace usp
