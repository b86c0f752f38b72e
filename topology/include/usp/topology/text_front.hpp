// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

/// What launchers, terminals and web pages add to a text, taken away before a reader sees it.
namespace usp::topology {

struct CleanText {
  std::string text;                ///< as many lines as the source; what was stripped whole is an empty line
  std::vector<std::string> notes;  ///< one sentence for each kind of addition that was stripped
};

/// Strips a byte order mark, terminal control sequences, no-break and zero-width spaces, time stamps in front
/// of lines, prefixes that most lines share ("[1,0]<stdout>:" of mpirun, "0: " of srun, "node01: " of pdsh,
/// "> " of mail), fences and tables of markdown (cells become separated by tabs). Throws InvalidInput for
/// more than 16 MiB, for UTF-16 and for NUL bytes.
[[nodiscard]] CleanText clean_text(std::string_view text, const std::string& file);

}  // namespace usp::topology
