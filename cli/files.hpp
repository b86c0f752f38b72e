// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace usp::cli {

/// What an option's value is, as --help prints it behind the name; check_files goes by it. Every option that
/// names something to read or to write has one of them as its type_name.
constexpr const char* input_file = "FILE";
constexpr const char* output_file = "OUT-FILE";
constexpr const char* results_folder = "OUT-FOLDER";  ///< of usp run, where it writes result_files()

/// Refuses a command line, before any work, on which a file to be written is one to be read or to be written
/// by another flag, or on which two flags read stdin. Files are compared by identity, not by
/// names: links and ./x count. Throws UsageError naming both flags.
void check_files(const CLI::App& app);

}  // namespace usp::cli
