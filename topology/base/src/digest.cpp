// SPDX-License-Identifier: Apache-2.0
#include "usp/base/digest.hpp"

namespace usp {

std::string Digest::hex() const {
  constexpr const char* digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = digits[(state_ >> (4 * i)) & 0xf];
  return text;
}

}  // namespace usp
