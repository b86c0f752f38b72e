// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"

/// Every JSON document of this project names its format and the schema version:
/// configs/schema/<name>.v<version>. Include only from .cpp files.
namespace usp {

/// One version for all formats. Units are SI base units and bytes, named by the key's end: _s, _bytes,
/// _bytes_per_s, _flop_per_s.
inline constexpr int json_schema_version = 2;

/// The first two keys of a document. @param format e.g. "usp.plan"
[[nodiscard]] Json json_header(std::string_view format);

/// Reads the two keys. Throws InvalidInput for another format, and for another version one that names it and
/// what to do. @param renew how the user gets the file in the present version
void check_json_header(ObjectReader& reader, std::string_view format, std::string_view renew);

}  // namespace usp
