// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

/// XML as a plain tree, for the NCCL reader. Not installed.
namespace usp::topology::xml {

struct Element {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<Element> children;
  long line = 0;

  [[nodiscard]] const std::string* find(const char* key) const;
};

/// Parses elements and attributes; comments are dropped. Throws InvalidInput on malformed XML, a DTD
/// (entities could blow up or read files), nesting deeper than 64, more than 100,000 elements, and text
/// between elements.
[[nodiscard]] Element parse(const std::string& text, const std::string& file);

}  // namespace usp::topology::xml
