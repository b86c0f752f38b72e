// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"

namespace usp {

/// What carries the messages of an axis between devices: copies by the copy engines, or NCCL's kernels.
enum class Transport { copy_engine, nccl };

template <>
struct WordTable<Transport> {
  static constexpr Word<Transport> words[] = {{"copy_engine", Transport::copy_engine},
                                              {"nccl", Transport::nccl}};
};

}  // namespace usp
