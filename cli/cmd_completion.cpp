// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/framework.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace usp::cli {

enum class Shell { bash, zsh, fish };

}  // namespace usp::cli

namespace usp {

template <>
struct WordTable<cli::Shell> {
  static constexpr Word<cli::Shell> words[] = {
      {"bash", cli::Shell::bash}, {"zsh", cli::Shell::zsh}, {"fish", cli::Shell::fish}};
};

}  // namespace usp

namespace usp::cli {
namespace {

/// Names that a flag or place takes; empty: files.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string name = option.get_name(true, true);
  if (name.find("--cluster") != std::string::npos) return preset_names("clusters");
  if (name.find("MODEL") != std::string::npos) return preset_names("models");
  if (name == "--to" || name == "--framework") return split_blanks(framework_words());
  return {};
}

/// Verbs below a command, and names of presets that it takes by place.
std::vector<std::string> words_of(const Command& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.places)
    for (const std::string& value : values_of(*option)) words.push_back(value);
  words.insert(words.end(), command.verbs.begin(), command.verbs.end());
  return words;
}

std::vector<std::string> flag_words(const Command& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.flags)
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  return words;
}

/// Names without commas: those of `framework_words`.
std::string joined(std::vector<std::string> words) {
  for (std::string& word : words) word.erase(std::remove(word.begin(), word.end(), ','), word.end());
  return join(words, " ");
}

/// Values of flags that take names, each flag once.
std::vector<std::pair<std::string, std::string>> named_values(const std::vector<Command>& commands) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const Command& command : commands)
    for (const CLI::Option* option : command.flags) {
      const std::string values = joined(values_of(*option)), flag = "--" + option->get_lnames().front();
      const bool known =
          std::any_of(list.begin(), list.end(), [&](const auto& row) { return row.first == flag; });
      if (!values.empty() && !known) list.emplace_back(flag, values);
    }
  return list;
}

std::string bash_text(const std::vector<Command>& commands) {
  std::string text =
      "_usp() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\" command=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"${command:+$command }${COMP_WORDS[i]}\" in\n";
  for (const Command& command : commands)
    if (!command.name.empty()) text += fmt::format("      \"{0}\") command=\"{0}\" ;;\n", command.name);
  text += "    esac\n  done\n  case \"$before\" in\n";
  for (const auto& [flag, values] : named_values(commands))
    text += fmt::format(
        "    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\") $(compgen -f -- \"$word\")); return ;;\n", flag,
        values);
  text += "  esac\n  local flags=\"\" words=\"\"\n  case \"$command\" in\n";
  for (const Command& command : commands)
    text += fmt::format("    \"{}\") flags=\"{}\"; words=\"{}\" ;;\n", command.name,
                        joined(flag_words(command)), joined(words_of(command)));
  text +=
      "  esac\n"
      "  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  else COMPREPLY=($(compgen -W \"$words\" -- \"$word\") $(compgen -f -- \"$word\")); fi\n"
      "}\n"
      "complete -o filenames -F _usp usp\n";
  return text;
}

std::string zsh_text(const std::vector<Command>& commands) {
  return "#compdef usp\nautoload -U +X bashcompinit && bashcompinit\n" + bash_text(commands);
}

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

std::string fish_text(const std::vector<Command>& commands) {
  std::string text;
  const auto values = named_values(commands);
  for (const Command& command : commands) {
    std::string condition = "__fish_use_subcommand";
    if (!command.name.empty()) {
      const std::vector<std::string> words = split(command.name, ' ');
      condition.clear();
      for (const std::string& word : words)
        condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    }
    for (const std::string& word : words_of(command))
      text += fmt::format("complete -c usp -n {} -a {}\n", fish_quoted(condition), fish_quoted(word));
    for (const CLI::Option* option : command.flags)
      for (const std::string& name : option->get_lnames()) {
        const auto named = std::find_if(values.begin(), values.end(),
                                        [&](const auto& row) { return row.first == "--" + name; });
        text += fmt::format("complete -c usp -n {} -l {}{}{} -d {}\n", fish_quoted(condition), name,
                            option->get_items_expected_max() > 0 ? " -r" : "",
                            named == values.end() ? "" : " -a " + fish_quoted(named->second),
                            fish_quoted(option->get_description()));
      }
  }
  return text;
}

void complete(const CLI::App& program, Shell shell) {
  const std::vector<Command> commands = commands_of(program);
  switch (shell) {
    case Shell::bash:
      std::cout << bash_text(commands);
      return;
    case Shell::zsh:
      std::cout << zsh_text(commands);
      return;
    case Shell::fish:
      std::cout << fish_text(commands);
  }
}

}  // namespace

void register_completion(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_page_verb(app, invocation, "completion", "Print what completes commands in a shell",
                                  "  usp completion bash > ~/.local/share/bash-completion/completions/usp\n"
                                  "  usp completion zsh > ~/.zfunc/_usp\n"
                                  "  usp completion fish > ~/.config/fish/completions/usp.fish");
  auto shell = std::make_shared<std::optional<Shell>>();
  FlagGroup(verb, plain_group).word("SHELL", *shell, word_choice<Shell>())->required();
  verb.app.preparse_callback([&invocation](std::size_t) { invocation.csv = true; });  // lines as they are
  verb.runs([shell, program = &app, &invocation] { complete(*program, **shell); });
}

}  // namespace usp::cli
