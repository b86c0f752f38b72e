// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

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

/// A check of CLI11 for a number from least to most, both allowed; NaN is not. A refusal tells the value and
/// what is allowed; CLI11 puts the flag before it. Without `most`, what the type holds.
template <class T>
CLI::Validator within(T least, T most = std::numeric_limits<T>::max()) {
  const bool open = most == std::numeric_limits<T>::max() && sizeof(T) > sizeof(int);
  const std::string allowed =
      open ? number_text(least) + " or more" : number_text(least) + " to " + number_text(most);
  return {[=](std::string& text) {
            T value{};
            const bool wraps = std::is_unsigned_v<T> && text.find('-') != std::string::npos;
            if (!wraps && CLI::detail::lexical_cast(text, value) && value >= least && value <= most)
              return std::string();
            return "'" + text + "' is not a " + (std::is_integral_v<T> ? "whole " : "") +
                   "number that is allowed here: " + allowed;
          },
          allowed};
}

}  // namespace usp::cli
