// SPDX-License-Identifier: Apache-2.0
#include "nvidia_smi_matrix.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <utility>

namespace usp::topology::smi {
namespace {

enum class Title { cpu_affinity, numa_affinity, gpu_numa_id };

struct Line {
  long number = 0;
  std::string text;
  std::vector<std::string> tokens;
};

std::optional<int> number_after(const std::string& token, std::string_view prefix) {
  if (token.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  return small_number(std::string_view(token).substr(prefix.size()), 4);
}

std::optional<Cell> parse_cell(const std::string& token) {
  // SOC is what drivers before 2017 print for SYS.
  static constexpr std::array<std::pair<std::string_view, LinkKind>, 7> paths{{{"PIX", LinkKind::pix},
                                                                               {"PXB", LinkKind::pxb},
                                                                               {"PHB", LinkKind::phb},
                                                                               {"NODE", LinkKind::node},
                                                                               {"SYS", LinkKind::sys},
                                                                               {"SOC", LinkKind::sys},
                                                                               {"C2C", LinkKind::c2c}}};
  if (token == "X") return Cell{token, LinkKind::unknown, 0, true};
  for (const auto& [name, kind] : paths)
    if (token == name) return Cell{token, kind, 0, false};
  const auto lanes = number_after(token, "NV");
  if (lanes && *lanes > 0 && *lanes < 1000) return Cell{token, LinkKind::nvlink, *lanes, false};
  return std::nullopt;
}

/// Cells of `nvidia-smi topo -p2p`, from its own legend.
bool is_p2p_status(const std::string& token) {
  static constexpr std::array<std::string_view, 7> states{{"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}};
  return std::find(states.begin(), states.end(), token) != states.end();
}

bool is_gpu_label(const std::string& token) {
  return number_after(token, "GPU").has_value();
}

/// A network device as its driver names it: letters first, a digit somewhere ("mlx5_0", "NIC11",
/// "rdmap79s0").
bool is_nic_label(const std::string& token) {
  if (std::isalpha(static_cast<unsigned char>(token[0])) == 0 || is_gpu_label(token) || parse_cell(token))
    return false;
  bool digit = false;
  for (char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || (std::isalnum(byte) == 0 && c != '_' && c != '-' && c != '.')) return false;
    digit = digit || std::isdigit(byte) != 0;
  }
  return digit && token.size() <= 64;
}

bool is_title_word(const std::string& token) {
  return token == "CPU" || token == "NUMA" || token == "GPU" || token == "ID" || token == "Affinity" ||
         token == "Node" || token == "node";
}

bool is_header_word(const std::string& token) {
  return is_gpu_label(token) || is_nic_label(token) || is_title_word(token);
}

bool starts_header(const Line& line) {
  return !line.tokens.empty() && is_gpu_label(line.tokens[0]) &&
         (line.tokens.size() == 1 || is_header_word(line.tokens[1]));
}

bool looks_like_row(const Line& line) {
  return line.tokens.size() > 1 && parse_cell(line.tokens[1]).has_value();
}

/// Numbers and ranges as the affinity columns hold them: "0-55,112-167", "3", "N/A".
bool is_affinity(const std::string& text) {
  if (text == "N/A") return true;
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0 &&
         text.find_first_not_of("0123456789,-") == std::string::npos;
}

class MatrixReader {
 public:
  MatrixReader(const std::string& text, std::string file) : file_(std::move(file)) {
    CleanText clean = clean_text(text, file_);
    matrix_.notes = std::move(clean.notes);
    for_each_line(clean.text, [&](long number, std::string_view line) {
      lines_.push_back({number, std::string(line), split_blanks(line)});
    });
  }

  Matrix read() {
    std::size_t at = skip_preamble();
    at = read_header(at);
    for (; at < lines_.size(); ++at) read_line(lines_[at]);
    return std::move(matrix_);
  }

 private:
  [[noreturn]] void fail(const Line& line, const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, line.number, excerpt(token)}, problem);
  }
  void ignore(const Line& line, const std::string& text) {
    matrix_.ignored.push_back(fmt::format("line {} ignored: '{}'", line.number, excerpt(text)));
  }

  /// A line of others; one that hides a row is none.
  void ignore_line(const Line& line) {
    for (std::size_t i = 0; i + 1 < line.tokens.size(); ++i)
      // A damaged tag may be glued to the label.
      if (is_gpu_label(line.tokens[i].substr(line.tokens[i].find_last_of(":>]|") + 1)) &&
          parse_cell(line.tokens[i + 1]))
        fail(line, line.tokens[0], "stands before a row of the matrix; is the line a mixture of two?");
    ignore(line, trim(line.text));
  }

  std::size_t skip_preamble() {
    for (std::size_t at = 0; at < lines_.size(); ++at) {
      const Line& line = lines_[at];
      if (starts_header(line)) return at;
      if (looks_like_row(line) && is_gpu_label(line.tokens[0]))
        fail(line, line.tokens[0], "a row of the matrix before its header; give the whole output");
      if (!line.tokens.empty()) ignore_line(line);
    }
    throw InvalidInput({file_, 0, ""},
                       "no line names GPU0, GPU1, ... as columns: not the output of nvidia-smi topo -m");
  }

  /// A header may be wrapped: it goes on while lines hold nothing but labels and titles.
  std::size_t read_header(std::size_t at) {
    std::vector<std::pair<std::string, const Line*>> words;
    const auto take = [&](const Line& line) {
      for (const auto& token : line.tokens) words.emplace_back(token, &line);
    };
    take(lines_[at++]);
    while (at < lines_.size() && !lines_[at].tokens.empty() && !looks_like_row(lines_[at]) &&
           std::all_of(lines_[at].tokens.begin(), lines_[at].tokens.end(), is_header_word))
      take(lines_[at++]);
    const auto is = [&](std::size_t i, const char* word) {
      return i < words.size() && words[i].first == word;
    };
    for (std::size_t i = 0; i < words.size();) {
      const auto& [word, line] = words[i];
      if (is(i, "CPU") && is(i + 1, "Affinity")) {
        add_title(Title::cpu_affinity, *line, word);
        i += 2;
      } else if (is(i, "NUMA") && is(i + 1, "Affinity")) {
        add_title(Title::numa_affinity, *line, word);
        i += 2;
      } else if (is(i, "NUMA")) {  // as people shorten it by hand
        add_title(Title::numa_affinity, *line, word);
        matrix_.notes.push_back(
            fmt::format("line {}: the column NUMA is read as NUMA Affinity", line->number));
        i += is(i + 1, "Node") || is(i + 1, "node") || is(i + 1, "ID") ? 2U : 1U;
      } else if (is(i, "CPU")) {
        add_title(Title::cpu_affinity, *line, word);
        ++i;
      } else if (is(i, "GPU") && is(i + 1, "NUMA") && is(i + 2, "ID")) {
        add_title(Title::gpu_numa_id, *line, word);
        i += 3;
      } else {
        add_column(word, *line);
        ++i;
      }
    }
    return at;
  }

  void add_title(Title title, const Line& line, const std::string& word) {
    if (std::find(titles_.begin(), titles_.end(), title) != titles_.end())
      fail(line, word, "an affinity column is named twice");
    titles_.push_back(title);
  }

  void add_column(const std::string& word, const Line& line) {
    const bool gpu = is_gpu_label(word);
    if (!gpu && !is_nic_label(word)) fail(line, word, "unknown column in the header");
    if (!titles_.empty()) fail(line, word, "a device column behind the affinity columns");
    if (find_column(word)) fail(line, word, "two columns have this label");
    Column column;
    column.label = word;
    column.line = line.number;
    column.gpu = number_after(word, "GPU");
    column.nic_number = number_after(word, "NIC");
    places_.emplace(column.label, matrix_.columns.size());
    if (column.gpu) gpu_places_.emplace(*column.gpu, matrix_.columns.size());
    matrix_.columns.push_back(column);
    if (matrix_.columns.size() > 1024) fail(line, word, "more than 1024 columns; this is no single host");
  }

  [[nodiscard]] std::optional<std::size_t> find_column(const std::string& label) const {
    if (const auto found = places_.find(label); found != places_.end()) return found->second;
    const auto number = number_after(label, "GPU");
    const auto found = number ? gpu_places_.find(*number) : gpu_places_.end();
    return found == gpu_places_.end() ? std::nullopt : std::optional(found->second);
  }

  void read_line(const Line& line) {
    if (line.tokens.empty()) return;
    const std::string& first = line.tokens[0];
    if (line.tokens.size() > 1 && starts_header(line) &&
        std::all_of(line.tokens.begin(), line.tokens.end(), is_header_word))
      fail(line, first,
           "a second matrix begins here; give one host at a time (equal hosts: one text and a node count)");
    if (const auto column = find_column(first)) return read_row(line, *column);
    if (is_gpu_label(first) || (looks_like_row(line) && is_nic_label(first)))
      fail(line, first,
           fmt::format("this row has no column: the header names {}, this not among them",
                       counted(matrix_.columns.size(), "label")));
    if (looks_like_row(line))
      fail(line, first, "looks like a row of the matrix, but its label is in no column");
    if (!read_legend(line)) ignore_line(line);
  }

  /// True for the tool's own legends, which say nothing new except the names of NICs.
  bool read_legend(const Line& line) {
    const auto& tokens = line.tokens;
    if (tokens.size() > 1 && tokens[1] == "=") {
      if (is_p2p_status(tokens[0])) refuse_p2p(line, tokens[0]);
      return true;
    }
    if (tokens.back() == "Legend:") return true;
    if (tokens.size() != 2 || tokens[0].back() != ':') return false;
    const auto column = find_column(tokens[0].substr(0, tokens[0].size() - 1));
    if (!column || !matrix_.columns[*column].nic_number) return false;
    if (!matrix_.columns[*column].nic_name.empty()) fail(line, tokens[0], "the legend names this NIC twice");
    if (!is_nic_label(tokens[1])) fail(line, tokens[1], "not the name of a network device");
    matrix_.columns[*column].nic_name = tokens[1];
    return true;
  }

  [[noreturn]] void refuse_p2p(const Line& line, const std::string& token) const {
    fail(line, token,
         "this is the matrix of nvidia-smi topo -p2p: it shows the status of peer-to-peer access, not links; "
         "give the output of nvidia-smi topo -m, and this one beside it with --p2p");
  }

  void read_row(const Line& line, std::size_t column) {
    Column& owner = matrix_.columns[column];
    if (owner.row)
      fail(line, owner.label,
           fmt::format("a second row of this label; the first is in line {}", matrix_.rows[*owner.row].line));
    const std::size_t count = matrix_.columns.size();
    std::vector<std::string> parts = tab_parts(line, count);
    const bool by_tabs = !parts.empty();
    if (!by_tabs) parts = line.tokens;
    Row row;
    row.column = column;
    row.line = line.number;
    for (std::size_t c = 0; c < count; ++c) {
      if (c + 1 >= parts.size() || parts[c + 1].empty())
        fail(line, owner.label,
             fmt::format("the cell of column {} is missing: the row has {} of {}", matrix_.columns[c].label,
                         std::min(c, parts.size() - 1), count));
      const std::string& token = parts[c + 1];
      if (is_p2p_status(token)) refuse_p2p(line, token);
      const auto cell = parse_cell(token);
      if (!cell)
        fail(line, token,
             "no path known to nvidia-smi topo -m (X, NV#, PIX, PXB, PHB, NODE, SYS, C2C), in column " +
                 matrix_.columns[c].label);
      row.cells.push_back(*cell);
    }
    parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count + 1));
    read_tail(line, parts, by_tabs, row);
    owner.row = matrix_.rows.size();
    matrix_.rows.push_back(std::move(row));
  }

  /// Label and cells as tabs separate them, so that an empty cell is seen; empty where the line is laid out
  /// by blanks.
  static std::vector<std::string> tab_parts(const Line& line, std::size_t columns) {
    if (line.text.find('\t') == std::string::npos) return {};
    std::vector<std::string> parts;
    for (const auto& part : split(line.text, '\t')) parts.push_back(trim(part));
    if (parts[0] != line.tokens[0]) return {};
    for (std::size_t i = 1; i < parts.size() && i <= columns; ++i)
      if (parts[i].find_first_of(" \v\f") != std::string::npos) return {};
    return parts;
  }

  /// Reads the cells behind the path cells: affinities, then possibly a comment.
  void read_tail(const Line& line, const std::vector<std::string>& parts, bool by_tabs, Row& row) {
    std::vector<std::string> values;
    std::vector<std::string> comment;
    // The tool puts an empty cell before the last affinity column; a part may be empty only between tabs.
    const std::size_t most = titles_.size() + (by_tabs ? 1 : 0);
    for (const auto& part : parts) {
      if (comment.empty() && values.size() < most && (part.empty() || is_affinity(part))) {
        values.push_back(part);
        continue;
      }
      if (comment.empty() && parse_cell(part))
        fail(line, part, "the row has more cells than the header has columns");
      if (!part.empty()) comment.push_back(part);
    }
    if (!comment.empty()) ignore(line, join(comment, " "));
    if (!matrix_.columns[row.column].gpu) return;
    const auto title = std::find(titles_.begin(), titles_.end(), Title::numa_affinity);
    const auto at = static_cast<std::size_t>(title - titles_.begin());
    if (title == titles_.end() || at >= values.size()) return;
    if (!by_tabs && values.size() != titles_.size()) return ignore_ambiguous(line, values);
    row.numa = small_number(values[at], 4);
  }

  /// Between blanks an empty cell cannot be seen, so a missing one cannot be located.
  void ignore_ambiguous(const Line& line, const std::vector<std::string>& values) {
    matrix_.ignored.push_back(fmt::format("line {}: {} for {}: the NUMA node is left unknown", line.number,
                                          counted(values.size(), "affinity value"),
                                          counted(titles_.size(), "column")));
  }

  std::string file_;
  std::vector<Line> lines_;
  std::vector<Title> titles_;
  Matrix matrix_;
  std::map<std::string, std::size_t> places_;  ///< columns by their label
  std::map<int, std::size_t> gpu_places_;      ///< and by their number: GPU7 is GPU07
};

}  // namespace

Matrix read_matrix(const std::string& text, const std::string& file) {
  return MatrixReader(text, file).read();
}

}  // namespace usp::topology::smi
