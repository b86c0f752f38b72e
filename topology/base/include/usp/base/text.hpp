// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// Whole content of a file, or of stdin for "-". Throws InvalidInput when it cannot be read or is larger than
/// 64 MiB.
[[nodiscard]] std::string read_file(const std::string& path);

/// Writes through a temporary name in the same folder, so that a reader never sees half a file; "-" is
/// stdout. SIGINT, SIGTERM and SIGHUP arrive once the file is whole, so that nothing of it is left lying.
void write_file(const std::string& path, std::string_view content);

/// Throws the EnvironmentError that write_file would, before there is something to write: tries with an empty
/// file beside `path`, which is left as it is.
void check_writable(const std::string& path);

/// Lines without their ends (\n or \r\n).
[[nodiscard]] std::vector<std::string> split_lines(std::string_view text);
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::vector<std::string> split_blanks(std::string_view text);
[[nodiscard]] std::string trim(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
/// For messages that echo what somebody else wrote: control characters, and bytes that are no UTF-8, as \x1b;
/// tabs too. Line feeds stay when `lines` (a message of several lines).
[[nodiscard]] std::string escaped(std::string_view text, bool lines = false);
[[nodiscard]] std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// The name among `known` nearest to `name` by edit distance, if near enough to be a typing error; else
/// empty.
[[nodiscard]] std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace usp
