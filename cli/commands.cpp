// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

#include <utility>

namespace usp::cli {
namespace {

void collect(const CLI::App& app, const std::string& name, std::vector<Command>& commands) {
  Command command{name, app.get_description(), app.get_footer(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) command.flags.push_back(option);
    if (option->get_positional()) command.places.push_back(option);
  }
  for (const CLI::App* below : app.get_subcommands({})) command.verbs.push_back(below->get_name());
  commands.push_back(std::move(command));
  for (const CLI::App* below : app.get_subcommands({}))
    collect(*below, (name.empty() ? "" : name + " ") + below->get_name(), commands);
}

}  // namespace

std::vector<Command> commands_of(const CLI::App& program) {
  std::vector<Command> commands;
  collect(program, "", commands);
  return commands;
}

}  // namespace usp::cli
