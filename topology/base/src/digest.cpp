// SPDX-License-Identifier: Apache-2.0
#include "usp/base/digest.hpp"

#include <bit>
#include <cstring>

namespace usp {
namespace {

constexpr std::uint64_t first_prime = 0x9E3779B185EBCA87ULL, second_prime = 0xC2B2AE3D27D4EB4FULL;

/// Both primes are odd: a bijection of `lane`, and of `word`.
[[nodiscard]] std::uint64_t stir(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * second_prime, 31) * first_prime;
}

}  // namespace

std::string Digest::hex() const {
  constexpr const char* digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = digits[(state_ >> (4 * i)) & 0xf];
  return text;
}

std::uint64_t digest_of_bytes(const void* data, std::size_t bytes) {
  constexpr std::size_t lanes = 4, word = sizeof(std::uint64_t), block = lanes * word;
  std::uint64_t state[lanes] = {first_prime, second_prime, ~first_prime, ~second_prime};
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t words[lanes];
  std::size_t left = bytes;
  for (; left >= block; left -= block, at += block) {
    std::memcpy(words, at, block);
    for (std::size_t i = 0; i < lanes; ++i) state[i] = stir(state[i], words[i]);
  }
  if (left > 0) {
    std::memset(words, 0, block);
    std::memcpy(words, at, left);
    for (std::size_t i = 0; i < lanes; ++i) state[i] = stir(state[i], words[i]);
  }
  auto digest = static_cast<std::uint64_t>(bytes);
  for (const std::uint64_t lane : state) digest = stir(digest, lane);
  digest = (digest ^ (digest >> 29)) * second_prime;
  return digest ^ (digest >> 32);
}

}  // namespace usp
