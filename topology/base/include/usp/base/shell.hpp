// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace usp {

/// Text as one word of a shell command, in single quotes where it needs them.
[[nodiscard]] std::string shell_word(const std::string& text);

}  // namespace usp
