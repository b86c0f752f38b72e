// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// An environment variable that this project reads.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;
};

/// All of them; nothing else of the environment has an effect.
[[nodiscard]] const std::vector<EnvironmentVariable>& environment_variables();

/// The value of a variable of that list; empty when it is not set. Throws InternalError for any other name.
[[nodiscard]] std::optional<std::string> environment(std::string_view name);

}  // namespace usp
