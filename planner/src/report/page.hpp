// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

/// The files of page/ as they were when the library was built.
namespace usp::report_page {

struct File {
  std::string_view path;  ///< below page/, e.g. "style.css"
  std::string_view text;
};

[[nodiscard]] std::span<const File> all();

}  // namespace usp::report_page
