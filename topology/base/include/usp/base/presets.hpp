// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace usp {

struct NamedText {
  std::string name;  ///< for messages: the path, or "preset:<name>"
  std::string text;
};

/// Names of the shipped files of one kind ("clusters", "models", "calibrations", "schema"), without ".json".
[[nodiscard]] std::vector<std::string> preset_names(const std::string& kind);

/// Whether a file of that kind and name is shipped.
[[nodiscard]] bool is_shipped(const std::string& kind, const std::string& name);

/// The shipped file of that kind and name. Throws InvalidInput when there is none.
[[nodiscard]] NamedText shipped_preset(const std::string& kind, const std::string& name);

/// The text of a file, of stdin ("-"), or of the preset with that name; a file of the same name wins.
/// Throws InvalidInput that lists near names when there is neither.
[[nodiscard]] NamedText file_or_preset(const std::string& kind, const std::string& name);

}  // namespace usp
