// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"

#include <string>
#include <string_view>

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

/// Tensors of a layer, as far as they are kept for the backward pass.
enum class Kept {
  input,      ///< the layer's input
  qkv,        ///< q, k and v of the home layout
  attention,  ///< attention's output, lse and what else its backward reads
  mlp,        ///< inputs of the MLP's products and norms, and its inner activations
};
inline constexpr int kept_kinds = 4;

/// Kinds of kept tensors that wait in host memory between forward and backward.
struct Offload {
  unsigned bits = 0;
  [[nodiscard]] constexpr bool any() const { return bits != 0; }
  [[nodiscard]] constexpr bool has(Kept kind) const {
    return (bits >> static_cast<unsigned>(kind) & 1U) != 0;
  }
  [[nodiscard]] constexpr Offload with(Kept kind) const { return {bits | 1U << static_cast<unsigned>(kind)}; }
  /// Of these kinds, those that are not among `others`.
  [[nodiscard]] constexpr Offload without(Offload others) const { return {bits & ~others.bits}; }
  [[nodiscard]] static constexpr Offload everything() { return {(1U << kept_kinds) - 1}; }
  bool operator==(const Offload&) const = default;
};
/// Kinds of which a recomputed layer keeps something.
[[nodiscard]] constexpr Offload kept_by(Recompute recompute) {
  if (layer_again(recompute)) return Offload{}.with(Kept::input);
  if (recompute == Recompute::keep_attention) return Offload{}.with(Kept::input).with(Kept::attention);
  return Offload::everything();
}
/// `offload` as a mode is full recompute with layer inputs in host memory.
[[nodiscard]] constexpr Offload offloaded(Recompute recompute, Offload also) {
  return recompute == Recompute::offload ? also.with(Kept::input) : also;
}

template <>
struct WordTable<Kept> {
  static constexpr Word<Kept> words[] = {
      {"input", Kept::input}, {"qkv", Kept::qkv}, {"attention", Kept::attention}, {"mlp", Kept::mlp}};
};
template <>
struct WordTable<Recompute> {
  static constexpr Word<Recompute> words[] = {
      {"none", Recompute::none}, {"selective", Recompute::selective},
      {"mlp", Recompute::mlp},   {"keep_attention", Recompute::keep_attention},
      {"full", Recompute::full}, {"offload", Recompute::offload}};
};

/// "input, mlp"; "none".
[[nodiscard]] std::string kinds_text(Offload offload, std::string_view separator = ", ");

}  // namespace usp
