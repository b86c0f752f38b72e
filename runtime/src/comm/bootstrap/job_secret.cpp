// SPDX-License-Identifier: Apache-2.0
#include "job_secret.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp::comm {
namespace {

constexpr std::size_t min_digits = 32;
constexpr std::size_t min_token_length = 16;
constexpr std::size_t min_distinct = 8;

[[nodiscard]] bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

[[nodiscard]] bool is_letter(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/// White space or a control character of ASCII; bytes of UTF-8 letters are neither.
[[nodiscard]] bool is_blank_or_control(char c) {
  return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
}

[[nodiscard]] std::size_t distinct(const std::string& text) {
  return std::set<char>(text.begin(), text.end()).size();
}

/// Why a text is no token; empty when it may be one.
[[nodiscard]] std::string flaw_of(const std::string& token) {
  if (token.empty()) return "is empty";
  if (std::any_of(token.begin(), token.end(), is_blank_or_control))
    return "holds white space or control characters, which are no part of a random text";
  if (token.size() >= min_token_length && distinct(token) >= min_distinct) return "";
  return fmt::format("is too easy to guess (below {} characters, or below {} different ones)",
                     min_token_length, min_distinct);
}

}  // namespace

bool random_run_id(const std::string& id) {
  std::string digits = id;
  std::erase(digits, '-');
  return digits.size() >= min_digits && distinct(digits) >= min_distinct &&
         std::any_of(digits.begin(), digits.end(), is_letter) &&
         std::all_of(digits.begin(), digits.end(), [](char c) { return is_digit(c) || is_letter(c); });
}

void check_token(const std::string& token) {
  const std::string flaw = flaw_of(token);
  if (flaw.empty()) return;
  throw UsageError(fmt::format("USP_JOB_TOKEN {}; set it to a random text, the same on all ranks: {}", flaw,
                               secret_command()));
}

const char* secret_command() {
  return "export USP_JOB_TOKEN=$(openssl rand -hex 32)";
}

}  // namespace usp::comm
