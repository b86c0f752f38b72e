// SPDX-License-Identifier: Apache-2.0
#include "command_line_error.hpp"
#include "error_json.hpp"
#include "help.hpp"
#include "page.hpp"
#include "verb.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/comm/ranks.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>

namespace usp::cli {
namespace {

/// Tells why on stderr, and on stdout as JSON where that is asked for and nothing else was printed.
int fail(const Invocation& invocation, const Failure& failure) {
  say(invocation, "", escaped(failure.text, !failure.remedies.empty()));
  if (invocation.json && !invocation.printed && comm::first_of_launch())
    std::cout << error_json(failure) << std::flush;
  return static_cast<int>(failure.code);
}

int fail(const Invocation& invocation, ExitCode code, const std::string& text) {
  return fail(invocation, {code, text, text, {}, std::nullopt});
}

/// The exit code after the last output.
int printed(const Invocation& invocation) {
  std::cout.flush();
  return std::cout ? 0 : fail(invocation, ExitCode::environment, "stdout cannot be written");
}

/// Runs the action and turns whatever it throws into the exit code of the design.
int run(const CLI::App& app, Invocation& invocation) {
  try {
    check_files(app);
    check_values(invocation);
    {
      const Page page(invocation);
      invocation.action();
    }
    return printed(invocation);
  } catch (const Error& error) {
    return fail(invocation, failure_of(error));
  } catch (const std::bad_alloc&) {
    return fail(invocation, ExitCode::environment,
                "out of memory; the input asks for more than this machine has");
  } catch (const std::exception& error) {
    return fail(invocation, ExitCode::internal, error.what());
  }
}

}  // namespace

}  // namespace usp::cli

// What the set-up of flags throws is a fault of this program, which std::terminate reports.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
  CLI::App app("usp: plan and price sequence-parallel attention on a ring x ulysses mesh", "usp");
  const usp::cli::Words given(argv + 1, argv + argc), typed = usp::cli::with_help_words(given);
  app.set_version_flag("--version", [&typed] { return usp::cli::version_text(typed); });
  app.require_subcommand(0, 1);  // none is refused below: CLI11 would not name an unknown verb
  usp::cli::Invocation invocation;
  usp::cli::register_verbs(app, invocation);
  app.footer("usp VERB --help shows the flags that most commands need, --help-all every one.");
  usp::cli::shorten_help(app, given);
  try {
    app.parse(usp::cli::Words(typed.rbegin(), typed.rend()));  // CLI11 takes them from the back
    if (app.get_subcommands().empty()) throw CLI::RequiredError("a verb");
  } catch (const CLI::Success& done) {  // --help, --version
    {
      const usp::cli::Page page(invocation);
      app.exit(done);
    }
    return usp::cli::printed(invocation);
  } catch (const CLI::ParseError& error) {
    invocation.json = std::find(typed.begin(), typed.end(), "--json") != typed.end();
    return usp::cli::fail(invocation, usp::ExitCode::usage, usp::cli::usage_problem(app, error, typed));
  }
  if (const std::string empty = usp::cli::empty_value_problem(app, typed); !empty.empty())
    return usp::cli::fail(invocation, usp::ExitCode::usage, empty);
  return usp::cli::run(app, invocation);
}
