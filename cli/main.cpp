// SPDX-License-Identifier: Apache-2.0
#include "command_line_error.hpp"
#include "verb.hpp"

#include "usp/base/error.hpp"
#include "usp/base/line.hpp"
#include "usp/base/text.hpp"
#include "usp/base/version.hpp"

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>

namespace usp::cli {
namespace {

int fail(ExitCode code, const std::string& text, bool lines = false) {
  print_line("usp: " + escaped(text, lines));
  return static_cast<int>(code);
}

/// The exit code after the last output.
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

// What the set-up of flags throws is a fault of this program, which std::terminate reports.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  CLI::App app("usp: plan and price sequence-parallel attention on a ring x ulysses mesh", "usp");
  app.set_version_flag("--version", "usp " + std::string(usp::version));
  app.require_subcommand(0, 1);  // none is refused below: CLI11 would not name an unknown verb
  usp::cli::Invocation invocation;
  usp::cli::register_verbs(app, invocation);
  const usp::cli::Words typed(argv + 1, argv + argc);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("a verb");
  } catch (const CLI::Success& done) {  // --help, --version
    app.exit(done);
    return usp::cli::printed();
  } catch (const CLI::ParseError& error) {
    return usp::cli::fail(usp::ExitCode::usage, usp::cli::usage_problem(app, error, typed));
  }
  if (const std::string empty = usp::cli::empty_value_problem(app, typed); !empty.empty())
    return usp::cli::fail(usp::ExitCode::usage, empty);
  return usp::cli::run(app, invocation);
}
