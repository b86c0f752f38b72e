// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"

namespace usp {

/// What of a layer's forward pass the backward pass computes again, from what is kept of it.
enum class Recompute {
  none,            ///< nothing: all inputs of matrix products are kept
  selective,       ///< core attention alone, as in Megatron-LM: its saved state is dropped, all else is kept
  mlp,             ///< the MLP and the norms: the layer's input, q, k, v, output, lse and MLP input are kept
  keep_attention,  ///< all but attention: the layer's input, attention's output and lse are kept
  full,            ///< the whole layer, from its kept input (the checkpoint)
  offload,         ///< as full, with the checkpoints in host memory
};

/// The forward pass of attention runs again.
[[nodiscard]] constexpr bool attention_again(Recompute recompute) {
  return recompute == Recompute::selective || recompute == Recompute::full || recompute == Recompute::offload;
}
/// The whole layer runs again, its collectives too.
[[nodiscard]] constexpr bool layer_again(Recompute recompute) {
  return recompute == Recompute::full || recompute == Recompute::offload;
}

template <>
struct WordTable<Recompute> {
  static constexpr Word<Recompute> words[] = {
      {"none", Recompute::none}, {"selective", Recompute::selective},
      {"mlp", Recompute::mlp},   {"keep_attention", Recompute::keep_attention},
      {"full", Recompute::full}, {"offload", Recompute::offload}};
};

}  // namespace usp
