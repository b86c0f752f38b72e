// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties_flags.hpp"

#include "usp/planner/whatif.hpp"
#include "usp/planner/workload.hpp"

#include <cmath>
#include <string>
#include <vector>

/// Properties of the readers of lists of values and of lengths, in the terms of properties_flags.hpp.
namespace usp::fuzz {

/// --sweep.
inline bool sweep(const std::string& text) {
  return taken([&] {
    const Axis axis = parse_axis(text);
    require(!axis.values.empty() && axis.values.size() <= 10000, "an axis of no or too many values");
    for (std::size_t i = 0; i < axis.values.size(); ++i) {
      require(std::isfinite(axis.values[i].number) && !axis.values[i].text.empty(), "a value that is none");
      require(i == 0 || !axis.continuous() || axis.values[i].number > axis.values[i - 1].number,
              "values that do not ascend");
    }
  });
}

/// Of a batch, whose documents may be empty (least 0), or of a file of lengths to draw from.
inline void require_lengths(const std::vector<std::int64_t>& lengths, std::int64_t least) {
  require(!lengths.empty(), "no length");
  for (const std::int64_t length : lengths)
    require(length >= least && length <= (std::int64_t{1} << 40), "a length out of range");
  if (least == 0) return;
  std::int64_t sum = 0;
  for (const std::int64_t length : draw_documents(lengths, 4096, 1)) sum += length;
  require(sum == 4096, "drawn documents do not fill the row");
}

/// A file of --document-lengths, and the list of --documents.
inline bool document_lengths(const std::string& text) {
  const bool file = taken([&] { require_lengths(read_document_lengths(text, "input"), 1); });
  const bool list = taken([&] { require_lengths(parse_document_lengths(text, "--documents"), 0); });
  return file || list;
}

}  // namespace usp::fuzz
