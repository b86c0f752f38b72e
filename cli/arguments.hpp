// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace usp::cli {

/// The arguments that a verb was given, quoted for a shell, in the order of --help: those whose long name
/// ("--nodes"; of a place its name) `kept` admits.
[[nodiscard]] std::string arguments_of(const CLI::App& verb,
                                       const std::function<bool(const std::string& name)>& kept);

}  // namespace usp::cli
