// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

namespace usp::bench {

/// The arguments of a benchmark: words in their places, flags anywhere. `--json` asks for one JSON object a
/// line, as gpu_table.py reads them.
class Options {
 public:
  Options(int argc, char** argv) : words_(argv + 1, argv + argc) {}
  /// Whether a flag is given; it is then taken out of the words.
  [[nodiscard]] bool flag(std::string_view name) { return std::erase(words_, name) > 0; }
  /// The word of a place from 0, or what stands for a missing one.
  [[nodiscard]] std::string word(std::size_t place, const std::string& otherwise) const {
    return place < words_.size() ? words_[place] : otherwise;
  }
  template <class N>
  [[nodiscard]] N number(std::size_t place, N otherwise) const {
    if (place >= words_.size()) return otherwise;
    N value = 0;
    const std::string& text = words_[place];
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc{} || end != text.data() + text.size())
      throw UsageError("argument " + std::to_string(place + 1) + " should be a number, but is '" + text +
                       "'; the head of the benchmark's source lists its arguments");
    return value;
  }

 private:
  std::vector<std::string> words_;
};

}  // namespace usp::bench
