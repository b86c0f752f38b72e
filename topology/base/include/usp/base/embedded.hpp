// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

/// The files of configs/ as they were when the library was built.
namespace usp::embedded {

struct File {
  std::string_view path;  ///< below configs/, e.g. "clusters/dgx-h100.json"
  std::string_view text;
};

[[nodiscard]] std::span<const File> all();

}  // namespace usp::embedded
