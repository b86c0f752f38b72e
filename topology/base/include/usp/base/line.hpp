// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace usp {

/// Writes text and a line feed to stderr by one write(2), so that lines of processes that share a terminal, a
/// file or (up to 4 KiB) a pipe do not run into each other. What stderr does not take is lost.
void print_line(std::string_view text);

}  // namespace usp
