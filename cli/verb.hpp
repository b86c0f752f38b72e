// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files.hpp"
#include "number_check.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace usp::cli {

/// What the command line chose: each verb sets `action` from its callback; main runs it and maps errors to
/// exit codes.
struct Invocation {
  bool json = false;   ///< print one JSON document on stdout instead of text
  bool quiet = false;  ///< no notes on stderr
  std::function<void()> action;
};

/// Adds a verb with its examples (shown under --help) and the flags every verb has (--json, --quiet).
CLI::App* add_verb(CLI::App& app, Invocation& invocation, const std::string& name, const std::string& summary,
                   const std::string& examples);

/// A note for people on stderr; silent under --quiet.
void note(const Invocation& invocation, const std::string& text);

// One file per verb.
void register_topo(CLI::App& app, Invocation& invocation);
void register_model(CLI::App& app, Invocation& invocation);
void register_plan(CLI::App& app, Invocation& invocation);
void register_price(CLI::App& app, Invocation& invocation);
void register_explain(CLI::App& app, Invocation& invocation);
void register_validate(CLI::App& app, Invocation& invocation);
void register_run(CLI::App& app, Invocation& invocation);
void register_bench(CLI::App& app, Invocation& invocation);
void register_score(CLI::App& app, Invocation& invocation);
void register_whatif(CLI::App& app, Invocation& invocation);
void register_report(CLI::App& app, Invocation& invocation);

}  // namespace usp::cli
