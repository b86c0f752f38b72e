// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/embedded.hpp"

/// The files of page/, by their paths below it.
namespace usp::report_page {

using embedded::File;

[[nodiscard]] std::span<const File> all();

}  // namespace usp::report_page
