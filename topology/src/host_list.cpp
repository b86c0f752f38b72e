// SPDX-License-Identifier: Apache-2.0
#include "host_list.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp::topology {
namespace {

constexpr std::size_t max_name_bytes = 253;  // of a name in DNS

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.';
}

}  // namespace

HostList::HostList(std::string_view list, std::string file, long line, std::size_t most)
    : list_(list), file_(std::move(file)), line_(line), most_(most) {
  while (true) {
    expressions_.push_back(read_expression());
    count_names(expressions_.back());
    if (at_ == list_.size()) return;
    ++at_;  // the comma
  }
}

void HostList::fail(const std::string& problem) const {
  throw InvalidInput({file_, line_, excerpt(list_)}, "host list: " + problem);
}

HostList::Expression HostList::read_expression() {
  Expression parts;
  std::size_t longest = 0;
  while (at_ < list_.size() && list_[at_] != ',') {
    parts.push_back(list_[at_] == '[' ? read_bracket() : read_literal());
    longest += parts.back().longest;
    if (longest > max_name_bytes) fail(fmt::format("a name of more than {} bytes", max_name_bytes));
  }
  if (parts.empty()) fail("an empty name between commas or at an end");
  return parts;
}

HostList::Part HostList::read_literal() {
  const std::size_t begin = at_;
  while (at_ < list_.size() && is_name_byte(list_[at_])) ++at_;
  if (at_ == begin) fail(fmt::format("unexpected '{}'", excerpt(list_.substr(at_, 1))));
  Part part;
  part.literal = list_.substr(begin, at_ - begin);
  part.longest = part.literal.size();
  return part;
}

HostList::Part HostList::read_bracket() {
  const std::size_t end = list_.find(']', ++at_);
  if (end == std::string_view::npos) fail("'[' without ']'");
  Part part;
  part.count = 0;
  for (bool more = true; more;) {
    const std::size_t stop = std::min(list_.find(',', at_), end);
    add_range(part, list_.substr(at_, stop - at_));
    more = stop < end;
    at_ = stop + 1;
  }
  return part;
}

void HostList::add_range(Part& part, std::string_view text) const {
  const std::size_t dash = text.find('-');
  const std::string_view low = text.substr(0, dash);
  const std::string_view high = dash == std::string_view::npos ? low : text.substr(dash + 1);
  const auto first = small_number(low, 9);
  const auto last = small_number(high, 9);
  if (!first || !last || *first > *last)
    fail(fmt::format("'{}' is no number or rising range", excerpt(text)));
  part.ranges.push_back({*first, *last, low.size()});
  part.count += static_cast<std::size_t>(*last - *first) + 1;
  part.longest = std::max({part.longest, low.size(), std::to_string(*last).size()});
  if (part.count > most_) fail(fmt::format("more than {} names", most_));
}

void HostList::count_names(const Expression& expression) {
  std::size_t product = 1;
  for (const Part& part : expression) {
    product *= part.count;  // both are at most most_
    if (product > most_) break;
  }
  count_ += product;
  if (count_ > most_) fail(fmt::format("more than {} names", most_));
}

void HostList::append(const Expression& expression, std::size_t part, const std::string& prefix,
                      std::vector<std::string>& names) {
  if (part == expression.size()) {
    names.push_back(prefix);
    return;
  }
  const Part& here = expression[part];
  if (here.ranges.empty()) return append(expression, part + 1, prefix + here.literal, names);
  for (const Range& range : here.ranges)
    for (int i = range.first; i <= range.last; ++i) {
      const std::string digits = std::to_string(i);
      const std::size_t zeros = range.width > digits.size() ? range.width - digits.size() : 0;
      append(expression, part + 1, prefix + std::string(zeros, '0') + digits, names);
    }
}

std::vector<std::string> HostList::names() const {
  std::vector<std::string> names;
  names.reserve(count_);
  for (const Expression& expression : expressions_) append(expression, 0, "", names);
  return names;
}

}  // namespace usp::topology
