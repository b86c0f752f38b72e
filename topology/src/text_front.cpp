// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/text_front.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <optional>

namespace usp::topology {
namespace {

using Lines = std::vector<std::string>;

bool digit(char c) {
  return c >= '0' && c <= '9';
}
bool name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
}

/// Length of a terminal control sequence at `at`; 0 without one. Web pages lose the ESC of "ESC[4m" and keep
/// the rest.
std::size_t escape_length(std::string_view text, std::size_t at) {
  const bool whole = text[at] == '\x1b';
  std::size_t end = whole ? at + 1 : at;
  if (end >= text.size() || text[end] != '[') return 0;
  const std::size_t parameters = ++end;
  while (end < text.size() && text[end] >= 0x20 && text[end] < 0x40) ++end;
  if (end >= text.size() || text[end] == '\n') return whole ? end - at : 0;
  const bool remnant =
      text[end] == 'm' && end > parameters && text.find_first_not_of("0123456789;", parameters) == end;
  return whole || remnant ? end + 1 - at : 0;
}

/// What stands for a blank, or for nothing, in UTF-8.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> odd_spaces{{{"\xc2\xa0", " "},
                                                                                   {"\xe2\x80\x87", " "},
                                                                                   {"\xe2\x80\xaf", " "},
                                                                                   {"\xe2\x80\x8b", ""},
                                                                                   {"\xef\xbb\xbf", ""},
                                                                                   {"&nbsp;", " "}}};

struct Counts {
  std::size_t escapes = 0, spaces = 0;
};

std::string without_controls(std::string_view text, Counts& counts) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t length = escape_length(text, at); length > 0) {
      at += length;
      ++counts.escapes;
      continue;
    }
    const auto* const odd = std::find_if(odd_spaces.begin(), odd_spaces.end(), [&](const auto& pair) {
      return text.substr(at, pair.first.size()) == pair.first;
    });
    if (odd != odd_spaces.end()) {
      result += odd->second;
      at += odd->first.size();
      ++counts.spaces;
      continue;
    }
    result += text[at++];
  }
  return result;
}

std::size_t digits_at(std::string_view line, std::size_t at) {
  std::size_t end = at;
  while (end < line.size() && digit(line[end])) ++end;
  return end - at;
}

/// "12:00:00", with a fraction and a zone where there are some; its length, or 0.
std::size_t clock_length(std::string_view line, std::size_t at) {
  std::size_t end = at;
  for (int part = 0; part < 3; ++part) {
    if (digits_at(line, end) != 2) return 0;
    end += 2;
    if (part < 2 && (end >= line.size() || line[end++] != ':')) return 0;
  }
  if (end + 1 < line.size() && (line[end] == '.' || line[end] == ',') && digit(line[end + 1]))
    end += 1 + digits_at(line, end + 1);
  if (end < line.size() && line[end] == 'Z') ++end;
  if (end + 5 < line.size() && (line[end] == '+' || line[end] == '-') && digits_at(line, end + 1) == 2)
    end += line[end + 3] == ':' ? 6U : 5U;
  return end - at;
}

/// "2025-01-31T12:00:00" or "2025-01-31 12:00:00"; its length, or 0.
std::size_t date_length(std::string_view line, std::size_t at) {
  const bool date = digits_at(line, at) == 4 && at + 19 <= line.size() &&
                    (line[at + 4] == '-' || line[at + 4] == '/') && digits_at(line, at + 5) == 2 &&
                    line[at + 7] == line[at + 4] && digits_at(line, at + 8) == 2 &&
                    (line[at + 10] == ' ' || line[at + 10] == 'T');
  const std::size_t clock = date ? clock_length(line, at + 11) : 0;
  return clock == 0 ? 0 : 11 + clock;
}

/// A date and time of day in front of a line, bare or in brackets, and the blank behind it.
std::size_t stamp_length(std::string_view line) {
  std::size_t at = 0;
  while (at < line.size() && line[at] == ' ') ++at;
  const bool bracket = at < line.size() && line[at] == '[';
  if (bracket) ++at;
  const std::size_t length = date_length(line, at);
  if (length == 0) return 0;
  at += length;
  if (bracket) {
    if (at >= line.size() || line[at] != ']') return 0;
    ++at;
  }
  if (at < line.size() && line[at] != ' ' && line[at] != '\t') return 0;
  return at < line.size() ? at + 1 : at;
}

/// A prefix that launchers put in front of every line; the function gives its length, or 0.
struct Prefix {
  const char* name;
  std::size_t (*length)(std::string_view line);
};

std::size_t tag_output(std::string_view line) {  // "[1,0]<stdout>:"
  std::size_t at = 1;
  if (line.empty() || line[0] != '[') return 0;
  const std::size_t job = digits_at(line, at);
  at += job;
  if (job == 0 || at >= line.size() || line[at++] != ',') return 0;
  const std::size_t rank = digits_at(line, at);
  at += rank;
  if (rank == 0 || at >= line.size() || line[at++] != ']') return 0;
  for (const std::string_view stream : {"<stdout>:", "<stderr>:", "<stddiag>:", "<stdout>", "<stderr>", ":"})
    if (line.substr(at, stream.size()) == stream) {
      at += stream.size();
      return at < line.size() && line[at] == ' ' ? at + 1 : at;
    }
  return 0;
}

std::size_t rank_label(std::string_view line) {  // " 0: ", "12: "
  std::size_t at = 0;
  while (at < line.size() && line[at] == ' ') ++at;
  const std::size_t count = digits_at(line, at);
  at += count;
  if (count == 0 || count > 6 || at >= line.size() || line[at] != ':') return 0;
  ++at;
  if (at == line.size()) return at;
  return line[at] == ' ' ? at + 1 : 0;
}

std::size_t bracketed_rank(
    std::string_view line) {  // "[0] ", "[rank0]: ", "[node01] ", "[pod/name/container] "
  if (line.empty() || line[0] != '[') return 0;
  std::size_t at = 1;
  while (at < line.size() && (name_char(line[at]) || line[at] == '/' || line[at] == ':')) ++at;
  if (at == 1 || at >= line.size() || line[at] != ']') return 0;
  ++at;
  if (at < line.size() && line[at] == ':') ++at;
  if (at == line.size()) return at;
  return line[at] == ' ' ? at + 1 : 0;
}

std::size_t host_label(std::string_view line) {  // "node01: ", "node01:", "worker-0  | "
  std::size_t at = 0;
  while (at < line.size() && name_char(line[at])) ++at;
  if (at == 0 || std::isalpha(static_cast<unsigned char>(line[0])) == 0) return 0;
  const std::size_t end = line.find_first_not_of(' ', at);
  if (end == std::string_view::npos) return 0;
  if (line[end] == '|') return end + 1 < line.size() && line[end + 1] == ' ' ? end + 2 : end + 1;
  if (end != at || line[at] != ':') return 0;
  ++at;
  if (at == line.size()) return at;
  return line[at] == ' ' || line[at] == '\t' ? at + 1 : 0;
}

std::size_t quotation(std::string_view line) {  // "> "
  if (line.empty() || line[0] != '>') return 0;
  return line.size() > 1 && line[1] == ' ' ? 2 : 1;
}

constexpr Prefix prefixes[] = {{"the tags of mpirun", tag_output},
                               {"the ranks of srun --label", rank_label},
                               {"a label in brackets", bracketed_rank},
                               {"the names of hosts", host_label},
                               {"the marks of a quotation", quotation}};

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\v\f") == std::string_view::npos;
}

/// Lines of one class: those that it shares must be two or more, and three of four that are not blank.
bool strip_shared(Lines& lines, const Prefix& prefix, std::vector<std::string>& notes) {
  std::size_t shared = 0, written = 0;
  std::string example;
  for (const std::string& line : lines) {
    if (blank(line)) continue;
    ++written;
    const std::size_t length = prefix.length(line);
    if (length == 0) continue;
    if (++shared == 1) example = trim(line.substr(0, length));
  }
  if (shared < 2 || 4 * shared < 3 * written) return false;
  for (std::string& line : lines) line.erase(0, prefix.length(line));
  notes.push_back(
      fmt::format("stripped {} ('{}') from {}", prefix.name, excerpt(example), counted(shared, "line")));
  return true;
}

void strip_stamps(Lines& lines, std::vector<std::string>& notes) {
  std::size_t stamped = 0;
  for (std::string& line : lines)
    if (const std::size_t length = stamp_length(line); length > 0) {
      line.erase(0, length);
      ++stamped;
    }
  if (stamped > 0) notes.push_back(fmt::format("stripped time stamps from {}", counted(stamped, "line")));
}

void replace_all(std::string& line, std::string_view from, std::string_view to) {
  for (std::size_t at = line.find(from); at != std::string::npos; at = line.find(from, at + to.size()))
    line.replace(at, from.size(), to);
}

/// "| a | b |" as "a<tab>b"; a rule of dashes becomes an empty line.
std::optional<std::string> table_row(const std::string& line) {
  std::string row = trim(line);
  replace_all(row, "\xe2\x94\x82", "|");  // the upright of box drawings
  replace_all(row, "\xe2\x94\x83", "|");
  if (row.size() < 2 || row.front() != '|' || row.back() != '|') return std::nullopt;
  row = row.substr(1, row.size() - 2);
  if (row.find_first_not_of(" |:-+=") == std::string::npos && row.find('-') != std::string::npos) return "";
  for (const std::string_view mark : {"**", "`"}) replace_all(row, mark, "");
  std::vector<std::string> cells;
  for (const std::string& cell : split(row, '|')) cells.push_back(trim(cell));
  return join(cells, "\t");
}

bool box_rule(const std::string& line) {
  const std::string rule = trim(line);
  // U+2500 to U+257F are box drawings: e2 94 xx and e2 95 xx.
  for (std::size_t at = 0; at < rule.size(); at += 3)
    if (rule.size() - at < 3 || rule[at] != '\xe2' || (rule[at + 1] != '\x94' && rule[at + 1] != '\x95'))
      return false;
  return !rule.empty();
}

void strip_markdown(Lines& lines, std::vector<std::string>& notes) {
  std::size_t fences = 0, rows = 0, marks = 0;
  for (std::string& line : lines) {
    const std::string start = trim(line);
    if (start.rfind("```", 0) == 0 || start.rfind("~~~", 0) == 0) {
      line.clear();
      ++fences;
      continue;
    }
    if (auto row = table_row(line)) {
      line = std::move(*row);
      ++rows;
    } else if (box_rule(line)) {
      line.clear();
    }
    for (const std::string_view escaped : {"\\_", "\\*", "\\#", "\\[", "\\]", "\\<", "\\>"})
      if (line.find(escaped) != std::string::npos) {
        replace_all(line, escaped, escaped.substr(1));
        ++marks;
      }
  }
  if (fences > 0) notes.emplace_back("stripped the fences of a markdown block");
  if (rows > 0) notes.push_back(fmt::format("read {} as rows of a markdown table", counted(rows, "line")));
  if (marks > 0) notes.emplace_back("stripped the backslashes of markdown");
}

}  // namespace

CleanText clean_text(std::string_view text, const std::string& file) {
  check_text_size(text, file);
  if (text.substr(0, 2) == "\xff\xfe" || text.substr(0, 2) == "\xfe\xff")
    throw InvalidInput({file, 1, ""}, "the text is UTF-16; save it as UTF-8");
  CleanText clean;
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    text.remove_prefix(3);
    clean.notes.emplace_back("stripped a byte order mark");
  }
  Counts counts;
  const std::string plain = without_controls(text, counts);
  if (counts.escapes > 0)
    clean.notes.push_back(fmt::format("stripped {}", counted(counts.escapes, "terminal control sequence")));
  if (counts.spaces > 0)
    clean.notes.push_back(fmt::format("{} no-break spaces are read as blanks", counts.spaces));
  Lines lines = split_lines(plain);
  // A stamp may stand before or behind the label of a launcher, and a quotation around both.
  constexpr int most_layers = 4;
  for (int layer = 0; layer < most_layers; ++layer) {
    strip_stamps(lines, clean.notes);
    const bool stripped = std::any_of(std::begin(prefixes), std::end(prefixes), [&](const Prefix& prefix) {
      return strip_shared(lines, prefix, clean.notes);
    });
    if (!stripped) break;
  }
  strip_markdown(lines, clean.notes);
  clean.text = join(lines, "\n");
  if (!lines.empty()) clean.text += '\n';
  return clean;
}

}  // namespace usp::topology
