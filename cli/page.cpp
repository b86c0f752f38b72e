// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"

#include "usp/base/env.hpp"
#include "usp/base/line.hpp"
#include "usp/base/text.hpp"
#include "usp/comm/mpi.hpp"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <streambuf>
#include <sys/ioctl.h>
#include <unistd.h>

namespace usp::cli {
namespace {

constexpr std::size_t min_columns = 20;
constexpr std::size_t max_columns = 1000;
/// Columns that text below a column of a table takes at least.
constexpr std::size_t text_columns = 28;
constexpr std::string_view bold = "\x1b[1m", red = "\x1b[31m", yellow = "\x1b[33m", plain = "\x1b[0m";

/// Cells on a terminal: UTF-8 continuation bytes take none.
std::size_t cells(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool is_rule(std::string_view line) {
  const std::string_view text = line.substr(indent_of(line));
  return text.size() > 3 && text.find_first_not_of('-') == std::string_view::npos;
}

/// "usp plan ...", not a row of a table that begins with "usp".
bool is_command(std::string_view line) {
  const std::string_view text = line.substr(indent_of(line));
  return text.rfind("usp ", 0) == 0 && text.size() > 4 && text[4] != ' ';
}

/// Start of the last column of a table's row; 0: none.
std::size_t last_column(std::string_view line) {
  for (std::size_t i = line.size(); i-- > indent_of(line) + 2;)
    if (line[i] != ' ' && line[i - 1] == ' ' && line[i - 2] == ' ') return i;
  return 0;
}

/// Where the rest of a line goes.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t last = last_column(line);
  if (last > 0 && last + text_columns <= columns) return last;
  const std::size_t indent = indent_of(line);
  return indent + (line.substr(indent).rfind("- ", 0) == 0 ? 2 : 4);
}

/// End of what fits into `columns` of `rest`, whose first `whole` bytes stay together: before a gap between
/// columns of a table, where that leaves half a line, else before a word; the whole first word where that is
/// wider.
std::size_t break_of(std::string_view rest, std::size_t whole, std::size_t columns) {
  std::size_t word = 0, gap = 0, seen = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    seen += cells(rest.substr(i, 1));
    if (seen > columns + 1) break;
    if (i <= whole || rest[i] != ' ' || rest[i - 1] == ' ') continue;
    word = i;
    if (i + 1 < rest.size() && rest[i + 1] == ' ') gap = i;
  }
  if (gap > columns / 2) return gap;
  return word > 0 ? word : std::min(rest.find(' ', std::max(whole, indent_of(rest))), rest.size());
}

/// COLUMNS, where it is a number; else 0.
std::size_t columns_of_environment() {
  const auto value = environment("COLUMNS");
  if (!value) return 0;
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), columns);
  const bool number = error == std::errc() && end == value->data() + value->size();
  return number && columns > 0 ? std::clamp(columns, min_columns, max_columns) : 0;
}

}  // namespace

std::size_t columns_of(int descriptor) {
  if (const std::size_t columns = columns_of_environment(); columns > 0) return columns;
  winsize size{};
  if (::isatty(descriptor) == 0 || ::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 0;
  return std::clamp<std::size_t>(size.ws_col, min_columns, max_columns);
}

bool on_terminal(int descriptor) {
  return ::isatty(descriptor) != 0 && !comm::mpi_launched();
}

bool colored(Color color, int descriptor) {
  if (color != Color::automatic) return color == Color::always;
  return on_terminal(descriptor) && environment("NO_COLOR").value_or("").empty();
}

std::string wrapped(std::string_view line, std::size_t columns) {
  if (columns == 0 || cells(line) <= columns || is_command(line)) return std::string(line);
  if (is_rule(line)) return std::string(line.substr(0, columns));
  const std::size_t hang = hanging_indent(line, columns);
  std::string text, rest(line);
  while (cells(rest) > columns) {
    const std::size_t end = break_of(rest, hang, columns);
    text += rest.substr(0, end);
    const std::size_t next = rest.find_first_not_of(' ', end);
    if (next == std::string::npos) return text;
    text += '\n';
    rest = std::string(hang, ' ') + rest.substr(next);
  }
  return text + rest;
}

void say(const Invocation& invocation, std::string_view label, const std::string& text) {
  const bool error = label.empty();
  std::string out;
  const std::size_t columns = columns_of(STDERR_FILENO);
  for (const std::string& line : split_lines("usp: " + std::string(label) + text))
    out += (out.empty() ? "" : "\n") + wrapped(line, columns);
  if (colored(invocation.color, STDERR_FILENO)) {
    const std::size_t mark = error ? 4 : 5 + label.size() - 1;  // "usp:" or "usp: note:"
    out = std::string(error ? red : yellow) + out.substr(0, mark) + std::string(plain) + out.substr(mark);
  }
  print_line(out);
}

/// Sets whole lines; what follows an empty line, or is first, and is not indented is a heading.
class Page::Buffer : public std::streambuf {
 public:
  Buffer(std::size_t columns, bool color, bool& printed)
      : columns_(columns), color_(color), printed_(printed), below_(std::cout.rdbuf(this)) {}
  ~Buffer() override {
    if (!line_.empty()) put(set_line());
    const bool failed = !std::cout || below_->pubsync() != 0;
    std::cout.rdbuf(below_);  // which clears the state
    if (failed) std::cout.setstate(std::ios::badbit);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char letter = traits_type::to_char_type(c);
    if (letter != '\n') {
      line_ += letter;
      return c;
    }
    return put(set_line() + "\n") ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    for (std::streamsize i = 0; i < count; ++i)
      if (traits_type::eq_int_type(overflow(traits_type::to_int_type(text[i])), traits_type::eof())) return i;
    return count;
  }
  int sync() override { return below_->pubsync(); }

 private:
  std::string set_line() {
    const bool heading = after_gap_ && !line_.empty() && line_.front() != ' ' && line_.front() != '-';
    after_gap_ = line_.empty();
    std::string text = wrapped(line_, columns_);
    line_.clear();
    return color_ && heading ? std::string(bold) + text + std::string(plain) : text;
  }
  bool put(const std::string& text) {
    printed_ = true;
    const auto size = static_cast<std::streamsize>(text.size());
    return below_->sputn(text.data(), size) == size;
  }
  std::size_t columns_;
  bool color_;
  bool& printed_;
  std::streambuf* below_;
  std::string line_;
  bool after_gap_ = true;
};

Page::Page(Invocation& invocation) {
  const bool text = !invocation.json && !invocation.csv;
  buffer_ = std::make_unique<Buffer>(text ? columns_of(STDOUT_FILENO) : 0,
                                     text && colored(invocation.color, STDOUT_FILENO), invocation.printed);
}

Page::~Page() = default;

}  // namespace usp::cli
