// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/version.hpp"

#include <fmt/format.h>

#include <iostream>

namespace usp::cli {
namespace {

/// Text as roff takes it: hyphens are those of the command line, and no line begins a request.
std::string roff(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\\') {
      line += "\\e";
      continue;
    }
    if (c == '-') line += '\\';
    line += c;
  }
  const bool request = !line.empty() && (line.front() == '.' || line.front() == '\'');
  return request ? "\\&" + line : line;
}

/// "--seq TOKENS", and what it does.
std::string flag_text(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "" : ", ") + ("-" + name);
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "" : ", ") + ("--" + name);
  const bool takes_value = option.get_items_expected_max() > 0;
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(names),
                     takes_value ? fmt::format(" \\fI{}\\fR", roff(option.get_type_name())) : "",
                     roff(option.get_description()));
}

std::string place_text(const CLI::Option& option) {
  return fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(option.get_name(true)), roff(option.get_description()));
}

std::string verb_text(const Command& command) {
  std::string text = fmt::format(".SS usp {}\n{}.\n", roff(command.name), roff(command.summary));
  for (const CLI::Option* option : command.places) text += place_text(*option);
  for (const CLI::Option* option : command.flags)
    if (!option->get_positional()) text += flag_text(*option);
  if (command.examples.empty()) return text;
  text += ".PP\n.nf\n";
  for_each_line(command.examples, [&](long, std::string_view line) { text += roff(line) + "\n"; });
  return text + ".fi\n";
}

std::string page(const CLI::App& program) {
  std::string text = fmt::format(
      ".TH USP 1 \"\" \"usp {}\" \"User Commands\"\n"
      ".SH NAME\nusp \\- plan and price sequence\\-parallel attention on a ring x Ulysses mesh\n"
      ".SH SYNOPSIS\n.B usp\n\\fIVERB\\fR [\\fIOPTIONS\\fR] ...\n.SH VERBS\n",
      version);
  for (const Command& command : commands_of(program))
    if (!command.name.empty()) text += verb_text(command);
  return text +
         ".SH EXIT STATUS\n0: ok. 1: internal. 2: usage. 3: invalid input. 4: no feasible plan. 5: "
         "environment. "
         "6: verification failed.\n";
}

}  // namespace

void register_man(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_page_verb(app, invocation, "man", "Print the manual page of all verbs and flags",
                                  "  usp man > usp.1 && man ./usp.1");
  verb.app.preparse_callback([&invocation](std::size_t) { invocation.csv = true; });  // lines as they are
  verb.runs([program = &app, &invocation] { std::cout << page(*program); });
}

}  // namespace usp::cli
