// SPDX-License-Identifier: Apache-2.0
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

namespace usp {
namespace {

/// Bytes of the UTF-8 character that begins `text` and controls nothing; 0: there is none.
std::size_t plain_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead < 0x20 || lead == 0x7f ? 0 : 1;
  const std::size_t length = lead >= 0xf0 && lead <= 0xf4   ? 4
                             : lead >= 0xe0 && lead <= 0xef ? 3
                             : lead >= 0xc2 && lead <= 0xdf ? 2
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return lead == 0xc2 && byte(1) < 0xa0 ? 0 : length;  // U+0080 to U+009F control terminals too
}

}  // namespace

void for_each_line(std::string_view text, const std::function<void(long, std::string_view)>& each) {
  for (long number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    each(number, line);
  }
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (auto& line : lines)
    if (!line.empty() && line.back() == '\r') line.pop_back();
  return lines;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::vector<std::string> split_blanks(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

std::string trim(std::string_view text) {
  const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string escaped(std::string_view text, bool lines) {
  std::string result;
  while (!text.empty()) {
    const std::size_t plain = lines && text.front() == '\n' ? 1 : plain_character(text);
    if (plain > 0) {
      result += text.substr(0, plain);
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(std::max<std::size_t>(1, plain));
  }
  return result;
}

std::string plural(std::int64_t count, std::string_view noun) {
  std::string word(noun);
  if (count == 1 || noun.empty()) return word;
  const auto ends = [&](std::string_view end) {
    return noun.size() > end.size() && noun.substr(noun.size() - end.size()) == end;
  };
  const bool vowel_before_y = ends("ay") || ends("ey") || ends("oy");
  if (ends("y") && !vowel_before_y) {
    word.back() = 'i';
    return word + "es";
  }
  return word + (ends("ch") || ends("sh") || ends("x") || ends("s") ? "es" : "s");
}

std::string counted(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + plural(count, noun);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = 1 + name.size() / 3;
  for (const auto& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t change = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() <= best_distance && row.back() < name.size()) {
      if (best.empty() || row.back() < best_distance) best = candidate;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace usp
