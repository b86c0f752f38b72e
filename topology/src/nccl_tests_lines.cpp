// SPDX-License-Identifier: Apache-2.0
#include "nccl_tests_lines.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
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

/// "2025-01-31" and "12:00:00"
bool is_date(const std::string& token) {
  return token.size() == 10 && token[4] == '-' && token[7] == '-' &&
         token.find_first_not_of("0123456789-") == std::string::npos;
}
bool is_clock(const std::string& token) {
  return token.size() >= 8 && token[2] == ':' && token[5] == ':' &&
         token.find_first_not_of("0123456789:.,") == std::string::npos;
}

/// Bytes of a data type; 0 for one that is not known.
std::int64_t element_bytes(std::string_view type) {
  if (type == "double" || type == "int64" || type == "uint64") return 8;
  if (type == "float" || type == "int32" || type == "uint32") return 4;
  if (type == "half" || type == "bfloat16" || type == "fp16" || type == "bf16") return 2;
  if (type == "int8" || type == "uint8" || type == "char" || type.substr(0, 2) == "f8" ||
      type.substr(0, 4) == "fp8_")
    return 1;
  return 0;
}

bool whole(const std::string& token) {
  return !token.empty() && token.find_first_not_of("0123456789") == std::string::npos;
}

/// A word and a decimal behind it: a row of a type that is not known.
bool has_times(const std::vector<std::string>& tokens, std::size_t type) {
  if (std::isalpha(static_cast<unsigned char>(tokens[type][0])) == 0) return false;
  const auto decimals =
      std::count_if(tokens.begin() + static_cast<std::ptrdiff_t>(type), tokens.end(), [](const auto& t) {
        return t.find('.') != std::string::npos && t.find_first_not_of("0123456789.") == std::string::npos;
      });
  return decimals >= 1;
}

}  // namespace

std::size_t find_row(const std::vector<std::string>& tokens) {
  static constexpr std::array<std::string_view, 18> types{
      {"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp16",
       "bf16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "f8_e4m3", "char"}};
  for (std::size_t at = 0; at + 2 < tokens.size(); ++at)
    if (whole(tokens[at]) && whole(tokens[at + 1]) &&
        (std::find(types.begin(), types.end(), tokens[at + 2]) != types.end() || has_times(tokens, at + 2)))
      return at;
  return tokens.size();
}

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

/// Programs without a reduction leave its column blank, some versions the root's too, and a time stamp may
/// stand at the end: the row with one token for each column.
std::vector<std::string> Table::aligned(long line, std::vector<std::string> tokens) {
  const std::size_t all = tokens.size();
  if (all == columns_.size() + 2 && is_date(tokens[all - 2]) && is_clock(tokens[all - 1])) {
    tokens.resize(all - 2);
    ++stamped_rows_;
  }
  if (tokens.size() >= columns_.size()) return tokens;
  const auto at_of = [&](const char* name) {
    const auto at = std::find(columns_.begin(), columns_.end(), name);
    return static_cast<std::ptrdiff_t>(at - columns_.begin());
  };
  const std::ptrdiff_t redop = at_of("redop"), root = at_of("root"),
                       sides = static_cast<std::ptrdiff_t>(sides_[0].first);
  const bool no_redop =
      redop < sides && redop < static_cast<std::ptrdiff_t>(tokens.size()) &&
      std::isalpha(static_cast<unsigned char>(tokens[static_cast<std::size_t>(redop)][0])) == 0;
  if (no_redop) tokens.insert(tokens.begin() + redop, "");
  if (no_redop && tokens.size() + 1 == columns_.size() && root < sides)
    tokens.insert(tokens.begin() + root, "-1");
  if (tokens.size() != columns_.size())
    fail(line, tokens.back(),
         fmt::format("the row has {} for {}; is the line cut?", counted(all, "value"),
                     counted(columns_.size(), "column")));
  ++blank_cells_;
  return tokens;
}

/// Bytes are whole elements, times the ranks where an operation counts so: a cut number is seen here.
void Table::check_size(long line, const NcclTestsRow& row) const {
  const std::int64_t element = element_bytes(row.type);
  if (element == 0 || row.size_bytes == 0) return;
  const bool sound =
      row.count > 0 && row.count <= row.size_bytes / element && row.size_bytes % (row.count * element) == 0;
  if (!sound)
    fail(line, std::to_string(row.size_bytes),
         fmt::format("is no multiple of {} elements of {}; is the line cut?", row.count, row.type));
}

NcclTestsRow Table::read_row(long line, const std::vector<std::string>& given, const NcclTestsRow* previous) {
  if (columns_.empty()) fail(line, given[0], "a row of numbers before any header that names its columns");
  const std::vector<std::string> tokens = aligned(line, given);
  if (tokens.size() != columns_.size())
    fail(line, tokens.back(),
         fmt::format("the row has {} for {}; is the line cut?", counted(tokens.size(), "value"),
                     counted(columns_.size(), "column")));
  NcclTestsRow row;
  for (std::size_t i = 0; i < sides_[0].first; ++i) {
    if (columns_[i] == "size") row.size_bytes = integer(file_, line, tokens[i]);
    if (columns_[i] == "count") row.count = integer(file_, line, tokens[i]);
    if (columns_[i] == "root")
      row.root = static_cast<int>(std::min<std::int64_t>(integer(file_, line, tokens[i]), 1 << 30));
    if (columns_[i] == "type") row.type = excerpt(tokens[i]);
    if (columns_[i] == "redop") row.redop = excerpt(tokens[i]);
  }
  check_size(line, row);
  for (std::size_t s = 0; s < sides_.size(); ++s)
    (s == 1 || in_place_only_ ? row.in_place : row.out_of_place) =
        read_side(line, tokens, sides_[s], row.size_bytes);
  if (row.size_bytes > 0) place(line, previous, row);  // rows of 0 bytes are left out
  return row;
}

/// Sizes rise inside a block. Where they fall back to one that the block has had, the test runs again.
void Table::place(long line, const NcclTestsRow* previous, NcclTestsRow& row) {
  const bool fresh = new_header_;
  new_header_ = false;
  if (previous == nullptr) {
    sizes_ = {row.size_bytes};
    return;
  }
  const bool same = previous->type == row.type && previous->redop == row.redop && previous->root == row.root;
  row.block = previous->block + (same && !fresh ? 0 : 1);
  if (row.block > previous->block) {
    sizes_ = {row.size_bytes};
    cycle_ = 1;
    return;
  }
  if (row.size_bytes <= previous->size_bytes) {
    if (sizes_.count(row.size_bytes) == 0)
      fail(line, std::to_string(row.size_bytes),
           fmt::format("sizes must rise from row to row, or repeat earlier ones; the one before is {}",
                       previous->size_bytes));
    ++row.block;
    cycles_ = std::max(cycles_, ++cycle_);
  }
  sizes_.insert(row.size_bytes);
}

}  // namespace usp::topology::nccl_tests
