// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace usp {

/// Plain-text table for people: columns padded to their widest cell, two blanks apart.
class TextTable {
 public:
  enum class Align { left, right };
  void column(std::string header, Align align = Align::left);
  void row(std::vector<std::string> cells);  ///< as many cells as columns
  void rule();                               ///< a line before the next row
  [[nodiscard]] std::string str(int indent = 0) const;

 private:
  struct Column {
    std::string header;
    Align align;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace usp
