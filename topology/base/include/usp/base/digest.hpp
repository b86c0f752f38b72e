// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace usp {

/// 64-bit FNV-1a over a sequence of values: detects whether two ranks or two files differ. Not a
/// defence against an adversary.
class Digest {
 public:
  Digest& bytes(std::string_view data) {
    for (char c : data) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return *this;
  }
  /// Integers and enums enter as eight little-endian bytes, so that their width does not matter.
  template <class T, class = std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>>>
  Digest& add(T value) {
    auto x = static_cast<std::uint64_t>(value);
    for (int i = 0; i < 8; ++i, x >>= 8) state_ = (state_ ^ (x & 0xff)) * 0x100000001b3ULL;
    return *this;
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }
  [[nodiscard]] std::string hex() const;

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// 64 bits of all bytes of a tensor or file, at memory speed: four lanes of eight bytes, each step of which
/// is a bijection of its lane, so that what differs in one word never has the same digest. Not that of
/// Digest.
[[nodiscard]] std::uint64_t digest_of_bytes(const void* data, std::size_t bytes);

}  // namespace usp
