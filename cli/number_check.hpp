// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>

namespace usp::cli {

/// "0.001", "1e+06", "16777216"
template <class T>
std::string number_text(T value) {
  if constexpr (std::is_floating_point_v<T>) return fmt::format("{:g}", value);
  return fmt::format("{}", value);
}

/// Reads a decimal number that is all of `text` and that T holds: no sign but '-', no "0x", no rounding to
/// what fits, no "nan", "inf" or "true".
template <class T>
bool parse_decimal(const std::string& text, T& value) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return false;
  if constexpr (std::is_integral_v<T>) {
    // CLI11 reads what this has checked once more, and takes "010" for 8.
    T again{};
    return CLI::detail::lexical_cast(text, again) && again == value;
  } else {
    return std::isfinite(value);
  }
}

/// A check of CLI11 for a number from least to most, both included; rejects NaN. The message has the value
/// and what is allowed; CLI11 puts the flag before it. Without `most`, what the type holds.
template <class T>
CLI::Validator within(T least, T most = std::numeric_limits<T>::max()) {
  const bool open = std::is_floating_point_v<T> && most == std::numeric_limits<T>::max();
  const std::string allowed =
      open ? number_text(least) + " or more" : number_text(least) + " to " + number_text(most);
  return {[=](std::string& text) {
            T value{};
            if (parse_decimal(text, value) && value >= least && value <= most) return std::string();
            return "'" + text + "' is not a " + (std::is_integral_v<T> ? "whole " : "") +
                   "number that is allowed here: " + allowed;
          },
          allowed};
}

}  // namespace usp::cli
