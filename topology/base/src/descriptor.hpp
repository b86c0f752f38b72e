// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

/// Not installed.
namespace usp {

/// The number in /dev/fd/N and /proc/self/fd/N; 0, 1 and 2 for /dev/stdin, /dev/stdout and /dev/stderr.
/// Empty for every other name.
[[nodiscard]] std::optional<int> descriptor_named(const std::string& path);

}  // namespace usp
