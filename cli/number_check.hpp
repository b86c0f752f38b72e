// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <cctype>
#include <cerrno>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>

namespace usp::cli {

/// "0.001", "1e+06", "16777216"
template <class T>
std::string number_text(T value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// CLI11's own conversion, which takes what its type cannot hold for the greatest that it can, and 010 for 8:
/// both are refused.
template <class T>
bool read_number(const std::string& text, T& value) {
  const std::size_t first = text.find_first_not_of("+-");
  if (std::is_integral_v<T> && first != std::string::npos && first + 1 < text.size() && text[first] == '0' &&
      std::isdigit(static_cast<unsigned char>(text[first + 1])) != 0)
    return false;
  if (std::is_unsigned_v<T> && text.find('-') != std::string::npos) return false;
  errno = 0;
  return CLI::detail::lexical_cast(text, value) && (errno != ERANGE || !std::is_integral_v<T>);
}

/// A check of CLI11 for a number from least to most, both allowed; NaN is not. A refusal tells the value and
/// what is allowed; CLI11 puts the flag before it. Without `most`, what the type holds.
template <class T>
CLI::Validator within(T least, T most = std::numeric_limits<T>::max()) {
  const bool open = most == std::numeric_limits<T>::max() && sizeof(T) > sizeof(int);
  const std::string allowed =
      open ? number_text(least) + " or more" : number_text(least) + " to " + number_text(most);
  return {[=](std::string& text) {
            T value{};
            if (read_number(text, value) && value >= least && value <= most) return std::string();
            return "'" + text + "' is not a " + (std::is_integral_v<T> ? "whole " : "") +
                   "number that is allowed here: " + allowed;
          },
          allowed};
}

}  // namespace usp::cli
