// SPDX-License-Identifier: Apache-2.0
#include "verb.hpp"

#include "flag_group.hpp"
#include "page.hpp"

#include "usp/base/text.hpp"

#include <utility>

namespace usp::cli {

void check_values(const Invocation& invocation) {
  if (!invocation.refused_value) return;
  try {
    std::rethrow_exception(invocation.refused_value);
  } catch (const Error& error) {
    if (invocation.on_refused_value) invocation.on_refused_value(error);
    throw;
  }
}

void Verb::runs(std::function<void()> action, std::function<void(const Error&)> on_refused_value) const {
  app.callback([verb = &app, target = &invocation, action = std::move(action),
                on_refused_value = std::move(on_refused_value)] {
    if (!verb->get_subcommands().empty()) return;
    target->action = action;
    target->on_refused_value = on_refused_value;
  });
}

namespace {

Verb named_verb(CLI::App& app, Invocation& invocation, const std::string& name, const std::string& summary,
                const std::string& examples, bool document) {
  CLI::App* verb = app.add_subcommand(name, summary);
  verb->footer("Examples:\n" + examples);
  if (document) verb->add_flag("--json", invocation.json, "one JSON document on stdout");
  verb->add_flag("-q,--quiet", invocation.quiet, "no notes on stderr");
  const Verb result{*verb, invocation};
  FlagGroup(result, "Options")
      .word("--color", invocation.color,
            word_choice<Color>() + " (auto: on terminals, unless NO_COLOR is set)");
  return result;
}

}  // namespace

Verb add_page_verb(CLI::App& app, Invocation& invocation, const std::string& name, const std::string& summary,
                   const std::string& examples) {
  return named_verb(app, invocation, name, summary, examples, false);
}

Verb add_verb(CLI::App& app, Invocation& invocation, const std::string& name, const std::string& summary,
              const std::string& examples) {
  return named_verb(app, invocation, name, summary, examples, true);
}

void add_csv_flag(const Verb& verb) {
  FlagGroup(verb, "Options")
      .flag("--csv", verb.invocation.csv, "the table as CSV, numbers in SI units and bytes");
}

void add_brief_flag(const Verb& verb) {
  FlagGroup(verb, "Options").flag("--brief", verb.invocation.brief, "the answer without what explains it");
}

void check_csv(const Invocation& invocation) {
  if (invocation.csv && invocation.json)
    throw UsageError("--csv and --json are two forms of one output; give one");
}

void note(const Invocation& invocation, const std::string& text) {
  if (!invocation.quiet) say(invocation, "note: ", escaped(text));
}

}  // namespace usp::cli
