// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"

namespace usp {

/// What of a layer's forward pass the backward pass computes again.
enum class Recompute {
  none,       ///< nothing: all inputs of matrix products are kept
  selective,  ///< the MLP and the norms; attention's q, k, v, output and lse are kept
  full,       ///< the whole layer, from its kept input (the checkpoint)
  offload,    ///< as full, with the checkpoints in host memory
};

template <>
struct WordTable<Recompute> {
  static constexpr Word<Recompute> words[] = {{"none", Recompute::none},
                                              {"selective", Recompute::selective},
                                              {"full", Recompute::full},
                                              {"offload", Recompute::offload}};
};

}  // namespace usp
