// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json_format.hpp"

#include <fmt/format.h>

namespace usp {

Json json_header(std::string_view format) {
  return {{"format", std::string(format)}, {"version", json_schema_version}};
}

void check_json_header(ObjectReader& reader, std::string_view format, std::string_view renew) {
  const std::string found = reader.string("format");
  if (found != format) reader.fail("format", fmt::format("'{}' is not {}", found, format));
  const std::int64_t version = reader.integer("version", 1, INT32_MAX);
  if (version == json_schema_version) return;
  const bool older = version < json_schema_version;
  reader.fail("version",
              fmt::format("{} version {} is {} than this usp, which reads version {}; {}", found, version,
                          older ? "older" : "newer", json_schema_version,
                          older ? renew : "use the usp that wrote it, or write it anew with this one"));
}

}  // namespace usp
