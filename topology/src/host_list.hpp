// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Slurm's host lists. Not installed.
namespace usp::topology {

/// A list as "a[1-3,7]x[0-1],b" states it. Nothing is expanded before it is known to be small enough: sixty
/// bytes can expand to more names than memory holds.
class HostList {
 public:
  /// Throws InvalidInput (file, line, excerpt of the list): a malformed list, more than `most` names, a name
  /// of more than 253 bytes.
  HostList(std::string_view list, std::string file, long line, std::size_t most);

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  struct Range {
    int first, last;
    std::size_t width;  ///< digits, with leading zeros
  };
  /// A literal or the ranges of one bracket.
  struct Part {
    std::string literal;
    std::vector<Range> ranges;
    std::size_t count = 1, longest = 0;
  };
  using Expression = std::vector<Part>;  ///< text between two commas

  [[noreturn]] void fail(const std::string& problem) const;
  Expression read_expression();
  Part read_literal();
  Part read_bracket();
  void add_range(Part& part, std::string_view text) const;
  void count_names(const Expression& expression);
  static void append(const Expression& expression, std::size_t part, const std::string& prefix,
                     std::vector<std::string>& names);

  std::string_view list_;
  std::string file_;
  long line_;
  std::size_t most_;
  std::size_t at_ = 0;
  std::size_t count_ = 0;
  std::vector<Expression> expressions_;
};

}  // namespace usp::topology
