// SPDX-License-Identifier: Apache-2.0
#include "nccl_tests_lines.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace usp::topology::nccl_tests {
namespace {

std::int64_t integer(const std::string& file, long line, const std::string& token) {
  std::int64_t value = 0;
  const char* end = token.data() + token.size();
  const auto [at, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || at != end || value < -1)
    throw InvalidInput({file, line, excerpt(token)}, "not a whole number");
  return value;
}

}  // namespace

double number(const std::string& file, long line, const std::string& token) {
  double value = 0;
  const char* end = token.data() + token.size();
  const auto [at, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || at != end || !std::isfinite(value) || value < 0)
    throw InvalidInput({file, line, excerpt(token)}, "not a number of zero or more");
  return value;
}

RankLine read_rank_line(const std::string& file, long line, const std::vector<std::string>& tokens) {
  RankLine result;
  result.line = line;
  const auto whole = [&](std::size_t at) {
    const auto value = at < tokens.size() ? small_number(tokens[at], 9) : std::nullopt;
    if (!value)
      throw InvalidInput({file, line, excerpt(at < tokens.size() ? tokens[at] : tokens.back())},
                         "a rank line must read: Rank N [Group N] [Pid N] [on HOST] device N [BUS] NAME");
    return *value;
  };
  result.rank = whole(1);
  if (result.rank >= 1000000)
    throw InvalidInput({file, line, tokens[1]}, "a million ranks or more; is this a rank?");
  std::size_t at = 2;
  for (; at < tokens.size() && tokens[at] != "device"; at += 2) {
    if (tokens[at] == "Group")
      result.group = whole(at + 1);
    else if (tokens[at] == "on" && at + 1 < tokens.size())
      result.host = excerpt(tokens[at + 1], 253);
    else if (tokens[at] != "Pid")
      whole(tokens.size());
    else
      whole(at + 1);
  }
  whole(at + 1);  // device number
  at += 2;
  if (at < tokens.size() && tokens[at].front() == '[') ++at;
  std::vector<std::string> name(tokens.begin() + static_cast<std::ptrdiff_t>(std::min(at, tokens.size())),
                                tokens.end());
  if (name.size() >= 2 && name[name.size() - 2] == "(node" && name.back().back() == ')') {
    if (result.host.empty()) result.host = excerpt("node " + name.back().substr(0, name.back().size() - 1));
    name.resize(name.size() - 2);
  }
  result.device = excerpt(join(name, " "));
  return result;
}

void Table::fail(long line, const std::string& token, const std::string& problem) const {
  throw InvalidInput({file_, line, excerpt(token)}, problem);
}

void Table::read_places(long line, const std::vector<std::string>& tokens) {
  for (const auto& token : tokens)
    if (token != "out-of-place" && token != "in-place")
      fail(line, token, "unknown heading of a group of columns");
  in_place_only_ = tokens.size() == 1 && tokens[0] == "in-place";
}

void Table::read_header(long line, const std::vector<std::string>& tokens) {
  columns_.clear();
  sides_.clear();
  static constexpr std::array<std::string_view, 5> before{{"size", "count", "type", "redop", "root"}};
  std::size_t at = 0;
  for (; at < tokens.size() && tokens[at] != "time"; ++at) {
    if (std::find(before.begin(), before.end(), tokens[at]) == before.end())
      fail(line, tokens[at], "unknown column");
    if (std::find(columns_.begin(), columns_.end(), tokens[at]) != columns_.end())
      fail(line, tokens[at], "the column is named twice");
    columns_.push_back(tokens[at]);
  }
  for (const char* needed : {"size", "count", "type"})
    if (std::find(columns_.begin(), columns_.end(), needed) == columns_.end())
      fail(line, needed, "the header lacks this column");
  read_sides(line, tokens, at);
  new_header_ = true;
}

void Table::read_sides(long line, const std::vector<std::string>& tokens, std::size_t at) {
  while (at < tokens.size()) {
    const bool whole = tokens[at] == "time" && at + 2 < tokens.size() && tokens[at + 1] == "algbw" &&
                       tokens[at + 2] == "busbw";
    if (!whole) fail(line, tokens[at], "the header must go on with time, algbw, busbw");
    Side side;
    side.first = at;
    at += 3;
    if (at < tokens.size() && tokens[at] != "time") {
      if (tokens[at] != "#wrong" && tokens[at] != "error") fail(line, tokens[at], "unknown column");
      side.check = tokens[at] == "#wrong" ? Check::wrong : Check::error;
      ++at;
    }
    sides_.push_back(side);
  }
  if (sides_.empty() || sides_.size() > 2)
    fail(line, tokens.back(), "the header must name one or two groups of times");
  columns_.resize(tokens.size());
}

/// A file in other units would be read wrongly without a sign of it.
void Table::read_units(long line, const std::vector<std::string>& tokens) {
  static constexpr std::array<std::string_view, 4> known{{"(B)", "(elements)", "(us)", "(GB/s)"}};
  for (const auto& token : tokens)
    if (std::find(known.begin(), known.end(), token) == known.end())
      fail(line, token, "unknown unit; the columns must be in B, elements, us and GB/s");
}

std::optional<NcclTestsTiming> Table::read_side(long line, const std::vector<std::string>& tokens,
                                                const Side& side, std::int64_t size_bytes) const {
  if (tokens[side.first] == "N/A") return std::nullopt;
  NcclTestsTiming timing;
  timing.time_us = number(file_, line, tokens[side.first]);
  timing.algbw_gb_s = number(file_, line, tokens[side.first + 1]);
  timing.busbw_gb_s = number(file_, line, tokens[side.first + 2]);
  if (timing.time_us <= 0) fail(line, tokens[side.first], "a time must be more than zero");
  const double expected = static_cast<double>(size_bytes) / timing.time_us * 1e-3;
  if (std::abs(timing.algbw_gb_s - expected) > 0.011 + 0.02 * expected)
    fail(line, tokens[side.first + 1],
         fmt::format("algbw must be size / time, which is {:f} GB/s here", expected));
  if (timing.busbw_gb_s > 2 * timing.algbw_gb_s + 0.02)
    fail(line, tokens[side.first + 2], "busbw is more than twice algbw, which no operation reaches");
  if (side.check == Check::none) return timing;
  const std::string& checked = tokens[side.first + 3];
  if (checked == "N/A") return timing;
  if (side.check == Check::error) {
    static_cast<void>(number(file_, line, checked));
    return timing;
  }
  timing.wrong = integer(file_, line, checked);
  if (*timing.wrong != 0) fail(line, checked, "the run computed wrong results: its times mean nothing");
  return timing;
}

NcclTestsRow Table::read_row(long line, const std::vector<std::string>& tokens,
                             const NcclTestsRow* previous) {
  if (columns_.empty()) fail(line, tokens[0], "a row of numbers before any header that names its columns");
  if (tokens.size() != columns_.size())
    fail(line, tokens.back(),
         fmt::format("the row has {} values for {} columns; is the line cut?", tokens.size(),
                     columns_.size()));
  NcclTestsRow row;
  for (std::size_t i = 0; i < sides_[0].first; ++i) {
    if (columns_[i] == "size") row.size_bytes = integer(file_, line, tokens[i]);
    if (columns_[i] == "count") row.count = integer(file_, line, tokens[i]);
    if (columns_[i] == "root")
      row.root = static_cast<int>(std::min<std::int64_t>(integer(file_, line, tokens[i]), 1 << 30));
    if (columns_[i] == "type") row.type = excerpt(tokens[i]);
    if (columns_[i] == "redop") row.redop = excerpt(tokens[i]);
  }
  for (std::size_t s = 0; s < sides_.size(); ++s)
    (s == 1 || in_place_only_ ? row.in_place : row.out_of_place) =
        read_side(line, tokens, sides_[s], row.size_bytes);
  if (previous != nullptr) {
    const bool same =
        previous->type == row.type && previous->redop == row.redop && previous->root == row.root;
    row.block = previous->block + (same && !new_header_ ? 0 : 1);
    if (row.block == previous->block && row.size_bytes <= previous->size_bytes)
      fail(line, std::to_string(row.size_bytes),
           fmt::format("sizes must rise from row to row; the one before is {}", previous->size_bytes));
  }
  if (row.size_bytes > 0) new_header_ = false;  // rows of 0 bytes are left out
  return row;
}

}  // namespace usp::topology::nccl_tests
