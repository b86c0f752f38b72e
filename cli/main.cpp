// SPDX-License-Identifier: Apache-2.0
#include "verb.hpp"

#include "usp/base/error.hpp"
#include "usp/base/line.hpp"
#include "usp/base/text.hpp"
#include "usp/base/version.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

namespace usp::cli {
namespace {

int fail(ExitCode code, const std::string& text, bool lines = false) {
  print_line("usp: " + escaped(text, lines));
  return static_cast<int>(code);
}

/// A command line that CLI11 does not take; its own words name the flag.
int fail(const CLI::ParseError& error) {
  return fail(ExitCode::usage, std::string(error.what()) + "; --help lists what there is");
}

/// What no flag and no place took, in the order in which it was typed: CLI11 keeps it in another.
std::string unexpected(const CLI::App& app, const std::vector<std::string>& typed) {
  std::vector<std::string> left = app.remaining(true);
  std::string text;
  for (const std::string& argument : typed) {
    const auto it = std::find(left.begin(), left.end(), argument);
    if (it == left.end()) continue;
    left.erase(it);
    text += " " + argument;
  }
  for (const std::string& argument : left) text += " " + argument;  // CLI11 took it apart
  return text;
}

/// A value that is empty is an unset variable of a script, not a wish for the default.
void refuse_empty_values(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& value : option->results())
      if (value.empty())
        throw CLI::ValidationError(option->get_name(), "the value is empty: give one, or leave the flag out");
  for (const CLI::App* part : verb.get_subcommands()) refuse_empty_values(*part);
}

/// The exit code of whoever has nothing left but what was printed.
int printed() {
  std::cout.flush();
  return std::cout ? 0 : fail(ExitCode::environment, "stdout cannot be written");
}

/// Runs the action and turns whatever it throws into the exit code of the design.
int run(const CLI::App& app, const Invocation& invocation) {
  try {
    check_files(app);
    check_values(invocation);
    invocation.action();
    return printed();
  } catch (const Error& error) {
    return fail(error.code(), error.what(), dynamic_cast<const Infeasible*>(&error) != nullptr);
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::environment, "out of memory; the input asks for more than this machine has");
  } catch (const std::exception& error) {
    return fail(ExitCode::internal, error.what());
  }
}

}  // namespace

}  // namespace usp::cli

// What the set-up of flags throws is a fault of this program; std::terminate tells it.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  CLI::App app("usp: plan and price sequence-parallel attention on a ring x ulysses mesh", "usp");
  app.set_version_flag("--version", "usp " + std::string(usp::version));
  app.require_subcommand(0, 1);  // none is refused below: CLI11 would not name an unknown verb
  usp::cli::Invocation invocation;
  usp::cli::register_verbs(app, invocation);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("a verb");
    usp::cli::refuse_empty_values(app);
  } catch (const CLI::Success& done) {  // --help, --version
    app.exit(done);
    return usp::cli::printed();
  } catch (const CLI::ExtrasError&) {
    return usp::cli::fail(usp::ExitCode::usage, "The following arguments were not expected:" +
                                                    usp::cli::unexpected(app, {argv + 1, argv + argc}) +
                                                    "; --help lists what there is");
  } catch (const CLI::ParseError& error) {
    return usp::cli::fail(error);
  }
  return usp::cli::run(app, invocation);
}
