// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/text.hpp"
#include "usp/base/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace usp::cli {
namespace {

/// A verb with no more flags shows all of them.
constexpr std::size_t short_list = 18;

const std::set<std::string_view> basic_flags = {
    "--batch",     "--cluster", "--csv",       "--data",   "--device",      "--forward-only",
    "--framework", "--gpus",    "--help",      "--json",   "--model",       "--nic",
    "--nodes",     "--output",  "--quiet",     "--ranks",  "--ring",        "--seq",
    "--sweep",     "--tensor",  "--ulysses",   "--verify", "--dry-run",     "--trace",
    "--documents", "--brief",   "--recompute", "--window", "--global-batch"};

bool holds(const std::vector<std::string>& typed, std::string_view word) {
  return std::find(typed.begin(), typed.end(), word) != typed.end();
}

void shorten(CLI::App& verb, const std::string& command) {
  for (CLI::App* below : verb.get_subcommands({})) shorten(*below, command + " " + below->get_name());
  const std::vector<CLI::Option*> options = verb.get_options();
  if (options.size() <= short_list) return;
  std::size_t hidden = 0;
  for (CLI::Option* option : options) {
    const bool basic = option->get_required() || option->get_positional() ||
                       basic_flags.count(option->get_name(false, false)) > 0;
    if (basic) continue;
    option->group("");
    ++hidden;
  }
  if (hidden > 0)
    verb.footer(
        fmt::format("{}: {} --help-all\n\n{}", counted(hidden, "more flag"), command, verb.get_footer()));
}

}  // namespace

std::vector<std::string> with_help_words(const std::vector<std::string>& typed) {
  std::vector<std::string> words = typed;
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  for (std::string& word : words) {
    if (word == "--help-all") word = "--help";
  }
  if (!words.empty() && words.front() == "-V") words.front() = "--version";
  return words;
}

std::string version_text(const std::vector<std::string>& typed) {
  if (!holds(typed, "--json")) return "usp " + std::string(version);
  Json json = json_header("usp.version");
  json["usp"] = version;
  return json.dump(1);
}

void shorten_help(CLI::App& app, const std::vector<std::string>& typed) {
  const bool help =
      holds(typed, "--help") || holds(typed, "-h") || (!typed.empty() && typed.front() == "help");
  if (!help || holds(typed, "--help-all")) return;
  for (CLI::App* verb : app.get_subcommands({})) shorten(*verb, "usp " + verb->get_name());
}

}  // namespace usp::cli
