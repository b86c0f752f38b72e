// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/text.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

/// Seeded damage as files meet it: cut, flipped and copied bytes; lines dropped, doubled, swapped and mixed.
namespace usp::fuzz {

using Random = std::mt19937_64;

/// Uniform enough for tests and the same on every standard library, as std distributions are not.
inline std::size_t below(Random& random, std::size_t bound) {
  return bound == 0 ? 0 : random() % bound;
}

inline std::string with_changed_bytes(std::string text, Random& random) {
  static const std::string likely = "\t\n #=[],-:<>\"/0189XNVGPU\x1b\xff";
  for (std::size_t i = 0, count = 1 + below(random, 4); i < count && !text.empty(); ++i) {
    const std::size_t at = below(random, text.size());
    switch (below(random, 4)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(random, 8)));
        break;
      case 1:
        text[at] = likely[below(random, likely.size())];
        break;
      case 2:
        text.erase(at, 1 + below(random, 8));
        break;
      default:
        text.insert(at, text.substr(below(random, text.size()), 1 + below(random, 8)));
        break;
    }
  }
  return text;
}

inline std::string with_changed_lines(const std::string& text, const std::string& other, Random& random) {
  std::vector<std::string> lines = split_lines(text);
  const std::vector<std::string> others = split_lines(other);
  for (std::size_t i = 0, count = 1 + below(random, 3); i < count && !lines.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(below(random, lines.size()));
    switch (below(random, 4)) {
      case 0:
        lines.erase(lines.begin() + at);
        break;
      case 1:
        lines.insert(lines.begin() + at, std::string(lines[static_cast<std::size_t>(at)]));
        break;
      case 2:
        std::swap(lines[static_cast<std::size_t>(at)], lines[below(random, lines.size())]);
        break;
      default:
        if (!others.empty()) lines.insert(lines.begin() + at, others[below(random, others.size())]);
        break;
    }
  }
  return join(lines, "\n") + "\n";
}

/// One damaged version of `text`; `texts` are files of the same kind to mix lines from.
inline std::string mutated(const std::string& text, const std::vector<std::string>& texts, Random& random) {
  switch (below(random, 4)) {
    case 0:
      return with_changed_bytes(text, random);
    case 1:
      return with_changed_lines(text, texts[below(random, texts.size())], random);
    case 2:
      return with_changed_bytes(with_changed_lines(text, texts[below(random, texts.size())], random), random);
    default:
      return with_changed_bytes(text.substr(0, below(random, text.size() + 1)), random);
  }
}

}  // namespace usp::fuzz
