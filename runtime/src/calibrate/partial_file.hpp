// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"

#include <string>
#include <utility>
#include <vector>

namespace usp::measure {

/// What a partial file is of, by names for messages: parts of other settings do not belong together.
using Settings = std::vector<std::pair<std::string, std::string>>;

struct PartialFile {
  Settings settings;
  Results results;
};

/// The parts that are finished, so that a second start goes on with the others.
[[nodiscard]] std::string write_partial(const PartialFile& content);
/// Throws InvalidInput for anything that write_partial did not write of these settings and parts, naming the
/// setting that differs.
[[nodiscard]] PartialFile read_partial(const std::string& text, const std::string& file,
                                       const Settings& settings, const std::vector<Part>& parts);

}  // namespace usp::measure
