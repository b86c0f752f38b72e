// SPDX-License-Identifier: Apache-2.0
#include "command_line_error.hpp"

#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::cli {
namespace {

/// The verbs that were named, outermost first, after the program itself.
std::vector<const CLI::App*> named_apps(const CLI::App& app) {
  std::vector<const CLI::App*> apps = {&app};
  while (!apps.back()->get_subcommands().empty()) apps.push_back(apps.back()->get_subcommands().front());
  return apps;
}

/// "usp plan attention"
std::string command_of(const std::vector<const CLI::App*>& apps) {
  Words words;
  for (const CLI::App* app : apps) words.push_back(app->get_name());
  return join(words, " ");
}

std::string see_help(const std::vector<const CLI::App*>& apps) {
  return fmt::format("'{} --help' lists what there is", command_of(apps));
}

Words verbs_of(const CLI::App& app) {
  Words verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  return verbs;
}

/// Between a problem with `word` and the list of what is known.
std::string suggestion(const std::string& word, const Words& known) {
  const std::string near = nearest_name(word, known);
  return near.empty() ? "; " : fmt::format("; did you mean '{}'? ", near);
}

/// The option that CLI11's message begins with or holds as a word; null where it names none.
const CLI::Option* option_in(const std::string& message, const std::vector<const CLI::App*>& apps) {
  const std::string padded = " " + message + " ";
  const std::vector<const CLI::App*> innermost_first(apps.rbegin(), apps.rend());
  for (const CLI::App* app : innermost_first)
    for (const CLI::Option* option : app->get_options())
      for (const char end : {':', ' '})
        if (padded.find(" " + option->get_name() + end) != std::string::npos) return option;
  return nullptr;
}

/// What no flag and no place took, in the order in which it was typed: CLI11 keeps it in another.
Words unexpected(const CLI::App& app, const Words& typed) {
  Words left = app.remaining(true);
  Words ordered;
  for (const std::string& argument : typed) {
    const auto it = std::find(left.begin(), left.end(), argument);
    if (it == left.end()) continue;
    left.erase(it);
    ordered.push_back(argument);
  }
  ordered.insert(ordered.end(), left.begin(), left.end());  // CLI11 took it apart
  return ordered;
}

std::string unexpected_problem(const CLI::App& app, const Words& typed) {
  const auto apps = named_apps(app);
  const Words extra = unexpected(app, typed);
  const std::string first = extra.empty() ? "" : extra.front();
  const std::string command = command_of(apps), all = join(extra, " ");
  const bool flag = first.compare(0, 1, "-") == 0;
  if (apps.size() == 1 && !flag)
    return fmt::format("'{}' is no verb{}the verbs are {}", first, suggestion(first, verbs_of(app)),
                       fmt::join(verbs_of(app), ", "));
  if (!flag)
    return fmt::format("'{}' does not expect '{}': every place is taken; leave it out; {}", command, all,
                       see_help(apps));
  Words flags;
  for (const CLI::Option* option : apps.back()->get_options())
    if (option->nonpositional()) flags.push_back(option->get_name());
  if (apps.size() > 1 && std::find(flags.begin(), flags.end(), first) != flags.end())
    return fmt::format("{} precedes its verb; give it after '{}'", first, command);
  return fmt::format("'{}' has no flag '{}'{}{}", command, all, suggestion(first, flags), see_help(apps));
}

std::string missing_problem(const CLI::App& app, const std::string& message) {
  const auto apps = named_apps(app);
  if (apps.size() == 1)
    return fmt::format("a verb is required; the verbs are {}", fmt::join(verbs_of(app), ", "));
  const CLI::Option* option = option_in(message, apps);
  if (option == nullptr) return fmt::format("{}; {}", message, see_help(apps));
  return fmt::format("{} is required: {}; {}", option->get_name(), option->get_description(), see_help(apps));
}

/// A value too many or too few.
std::string count_problem(const CLI::App& app, const std::string& message) {
  const auto apps = named_apps(app);
  const CLI::Option* option = option_in(message, apps);
  if (option == nullptr) return fmt::format("{}; {}", message, see_help(apps));
  if (option->count() > static_cast<std::size_t>(option->get_items_expected_max()))
    return fmt::format("{}: given {} times, and no value replaces another; give it once", option->get_name(),
                       option->count());
  return fmt::format("{}: the value is missing: {}; give one, or leave the flag out", option->get_name(),
                     option->get_description());
}

std::string conversion_problem(const CLI::App& app, const std::string& message) {
  const auto apps = named_apps(app);
  const CLI::Option* option = option_in(message, apps);
  if (option == nullptr) return fmt::format("{}; {}", message, see_help(apps));
  const std::string value = join(option->results(), " ");
  if (option->get_items_expected_max() == 0)
    return fmt::format("{} is a switch, which takes no value '{}'; leave the value out", option->get_name(),
                       value);
  return fmt::format("{}: '{}' is not {}; {}", option->get_name(), value, option->get_type_name(),
                     see_help(apps));
}

}  // namespace

std::string empty_value_problem(const CLI::App& app, const Words& typed) {
  const std::string remedy = ": the value is empty: give one, or leave the flag out";
  for (const std::string& word : typed)  // CLI11 gives a flag such as "--seq=" the next word
    if (word.size() > 3 && word.compare(0, 2, "--") == 0 && word.find('=') == word.size() - 1)
      return word.substr(0, word.size() - 1) + remedy;
  for (const CLI::App* part : named_apps(app))
    for (const CLI::Option* option : part->get_options())
      for (const std::string& value : option->results())
        if (value.empty()) return option->get_name() + remedy;
  return "";
}

std::string usage_problem(const CLI::App& app, const CLI::ParseError& error, const Words& typed) {
  if (std::string empty = empty_value_problem(app, typed); !empty.empty()) return empty;
  const std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unexpected_problem(app, typed);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return missing_problem(app, message);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return count_problem(app, message);
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) return conversion_problem(app, message);
  return fmt::format("{}; {}", message, see_help(named_apps(app)));
}

}  // namespace usp::cli
