// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace usp::cli {

/// A command line as its words.
using Words = std::vector<std::string>;

/// Problem, why and remedy of a command line that CLI11 refuses.
/// @param app after CLI11 parsed `typed`, the words behind the program's name
[[nodiscard]] std::string usage_problem(const CLI::App& app, const CLI::ParseError& error,
                                        const Words& typed);

/// The problem of the first empty value, which an unset variable of a script leaves; empty where there is
/// none.
[[nodiscard]] std::string empty_value_problem(const CLI::App& app, const Words& typed);

}  // namespace usp::cli
