// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

/// The command line as its records hold it, for what is generated from them.
namespace usp::cli {

/// A command word and what may follow it.
struct Command {
  std::string name;     ///< "plan", "plan attention"; empty: the program itself
  std::string summary;  ///< of --help
  std::string examples;
  std::vector<const CLI::Option*> flags, places;
  std::vector<std::string> verbs;  ///< below it
};

/// The program, then every verb before those below it.
[[nodiscard]] std::vector<Command> commands_of(const CLI::App& program);

}  // namespace usp::cli
