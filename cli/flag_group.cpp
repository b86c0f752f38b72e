// SPDX-License-Identifier: Apache-2.0
#include "flag_group.hpp"

namespace usp::cli {

std::string choice(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace usp::cli
