// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/runtime/run_request.hpp"
#include "usp/schedule/mesh.hpp"

namespace usp {

/// Keys are the names of the fields; an empty field is null.
[[nodiscard]] Json request_json(const RunRequest& request);

[[nodiscard]] Json run_mesh_json(const Mesh& mesh);

}  // namespace usp
