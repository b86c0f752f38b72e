// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/runtime/npy.hpp"

#include <string>

namespace usp::fuzz {

/// What was read has as many bytes as its shape says, and is written and read again without a change.
inline bool npy(const std::string& content) {
  try {
    const NpyArray array = parse_npy(content, "input");
    require(array.data_bytes() == static_cast<i64>(array.bytes.size()),
            "a body of another size than the shape");
    const NpyArray again = parse_npy(npy_bytes(array), "written");
    require(again.type == array.type && again.shape == array.shape && again.bytes == array.bytes,
            "the round trip changes an array");
    return true;
  } catch (const InvalidInput& error) {
    require(error.where().file != "written", error.what());
    return false;
  }
}

}  // namespace usp::fuzz
