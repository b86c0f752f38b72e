// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files.hpp"

#include "usp/base/error.hpp"

#include <CLI/CLI.hpp>

#include <exception>
#include <functional>
#include <string>

namespace usp::cli {

enum class Color { automatic, always, never };

/// What the command line chose: the callback of a verb sets `action`; main runs it and maps errors to exit
/// codes.
struct Invocation {
  bool json = false;   ///< print one JSON document on stdout instead of text
  bool csv = false;    ///< print a table as CSV instead
  bool brief = false;  ///< the answer without what explains it
  bool quiet = false;  ///< no notes on stderr
  Color color = Color::automatic;
  bool printed = false;  ///< something went to stdout while a Page was there
  std::function<void()> action;
  /// The first value that the parser of its flag refused (FlagGroup). Held until CLI11 has checked the whole
  /// command line, so that --help, unknown and missing flags come first.
  std::exception_ptr refused_value;
  /// Called with that error before it is thrown; for verbs whose ranks wait for each other.
  std::function<void(const Error&)> on_refused_value;
};

/// Throws the error of the first refused value.
void check_values(const Invocation& invocation);

/// A verb under registration.
struct Verb {
  CLI::App& app;
  Invocation& invocation;

  /// `action` runs when the command line names this verb, and none below it; `on_refused_value` becomes
  /// that of the invocation.
  void runs(std::function<void()> action, std::function<void(const Error&)> on_refused_value = {}) const;
};

/// Adds a verb with its examples (shown under --help) and the flags every verb has (--quiet, --color).
[[nodiscard]] Verb add_page_verb(CLI::App& app, Invocation& invocation, const std::string& name,
                                 const std::string& summary, const std::string& examples);
/// The same for a verb whose answer may be a document: --json too.
[[nodiscard]] Verb add_verb(CLI::App& app, Invocation& invocation, const std::string& name,
                            const std::string& summary, const std::string& examples);

/// Adds --csv: the verb's table, numbers in SI units and bytes.
void add_csv_flag(const Verb& verb);
/// Adds --brief.
void add_brief_flag(const Verb& verb);
/// Throws UsageError for --csv beside --json.
void check_csv(const Invocation& invocation);

/// A note for people on stderr; silent under --quiet.
void note(const Invocation& invocation, const std::string& text);

/// Calls register_<verb> for every verb of CMakeLists.txt, in that order, which is that of --help.
void register_verbs(CLI::App& app, Invocation& invocation);

}  // namespace usp::cli
