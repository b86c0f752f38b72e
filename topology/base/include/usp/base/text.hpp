// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// Every line without its end (`\n` or `\r\n`), with its number from 1; without a list of all of them, which
/// may take many times the memory of the text.
void for_each_line(std::string_view text,
                   const std::function<void(long number, std::string_view line)>& each);

/// Lines without their ends (`\n` or `\r\n`).
[[nodiscard]] std::vector<std::string> split_lines(std::string_view text);
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::vector<std::string> split_blanks(std::string_view text);
[[nodiscard]] std::string trim(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
/// Escapes untrusted text for messages: control characters, and bytes that are no UTF-8, as `\x1b`;
/// tabs too. Line feeds stay when `lines` (a message of several lines).
[[nodiscard]] std::string escaped(std::string_view text, bool lines = false);
[[nodiscard]] std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// "1 host", "2 hosts", "2 switches", "2 copies": a count and its noun, whose last word takes the plural.
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);
template <class Integer>
[[nodiscard]] std::string counted(Integer count, std::string_view noun) {
  return counted(static_cast<std::int64_t>(count), noun);
}
/// The noun alone, as `counted` inflects it.
[[nodiscard]] std::string plural(std::int64_t count, std::string_view noun);

/// The name among `known` nearest to `name` by edit distance, if near enough to be a typing error; else
/// empty.
[[nodiscard]] std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace usp
