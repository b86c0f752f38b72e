// SPDX-License-Identifier: Apache-2.0
#include "usp/base/table.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Cells on a terminal, not bytes: UTF-8 continuation bytes take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void TextTable::column(std::string header, Align align) {
  columns_.push_back({std::move(header), align});
}

void TextTable::row(std::vector<std::string> cells) {
  expects(cells.size() == columns_.size(), "a table row has another number of cells than columns");
  rows_.push_back(std::move(cells));
}

void TextTable::rule() {
  rows_.emplace_back();
}

std::string TextTable::str(int indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(width(columns_[c].header));
    for (const auto& cells : rows_)
      if (!cells.empty()) widths[c] = std::max(widths[c], width(cells[c]));
  }
  std::string text;
  const auto line = [&](const auto& cell_of) {
    std::string out(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string pad(widths[c] - width(cell), ' ');
      out += (c == 0 ? "" : "  ") + (columns_[c].align == Align::right ? pad + cell : cell + pad);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  };
  line([&](std::size_t c) -> const std::string& { return columns_[c].header; });
  std::size_t total = 0;
  for (std::size_t w : widths) total += w + 2;
  for (const auto& cells : rows_) {
    if (cells.empty()) {
      text += fmt::format("{}{}\n", std::string(static_cast<std::size_t>(indent), ' '),
                          std::string(total > 2 ? total - 2 : 0, '-'));
      continue;
    }
    line([&](std::size_t c) -> const std::string& { return cells[c]; });
  }
  return text;
}

}  // namespace usp
