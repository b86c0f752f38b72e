// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

/// --help shows the flags that most commands need, --help-all every one.
namespace usp::cli {

/// The arguments as CLI11 knows them: `help VERB` and --help-all become --help, -V becomes --version.
[[nodiscard]] std::vector<std::string> with_help_words(const std::vector<std::string>& typed);

/// Of --version: with --json a document (schema: configs/schema/version.v2.schema.json).
[[nodiscard]] std::string version_text(const std::vector<std::string>& typed);

/// Where --help and not --help-all is typed: leaves the rarer flags of long lists out of it.
void shorten_help(CLI::App& app, const std::vector<std::string>& typed);

}  // namespace usp::cli
