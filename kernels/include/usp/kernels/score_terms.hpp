// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstdint>

namespace usp::kernels {

/// Which blocks of pairs each query head may see, over global positions: head h admits query position x and
/// key position y iff admitted[(h * rows + x / block_q) * columns + y / block_k] != 0 (block-sparse attention
/// of DeepSpeed, BigBird, Longformer). Non-owning; the same on every rank, whatever heads a rank holds.
struct BlockMask {
  i64 block_q = 0;
  i64 block_k = 0;
  i64 rows = 0;                            ///< ceil(query positions / block_q)
  i64 columns = 0;                         ///< ceil(key positions / block_k)
  const std::uint8_t* admitted = nullptr;  ///< [query heads][rows][columns]

  [[nodiscard]] bool admits(i64 head, i64 q_pos, i64 k_pos) const {
    return admitted[(head * rows + q_pos / block_q) * columns + k_pos / block_k] != 0;
  }
};

/// What happens to a visible pair's logit, in this order: s = scale * q.k; softcap: s = cap * tanh(s / cap)
/// (Gemma 2); ALiBi: s -= slope[head] * |x - y| (arXiv:2108.12409, symmetric form); after the softmax a
/// probability is dropped or divided by 1 - dropout. Positions are the slices' own, so that neither a mesh
/// nor a layout changes any of it. The log-sum-exp is that of the logits before dropout.
struct ScoreTerms {
  double scale = 1;
  double softcap = 0;                    ///< 0: none
  const double* alibi_slopes = nullptr;  ///< per global query head; null: none
  double dropout = 0;                    ///< probability to drop, in [0, 1)
  std::uint64_t dropout_seed = 0;
  const BlockMask* blocks = nullptr;  ///< null: all
};

/// The global name of a pair: what dropout is keyed by.
struct PairKey {
  i64 batch, head, q_pos, k_pos;
};

/// 32 random bits of a pair: Philox4x32-10 (Salmon et al., SC'11) with the seed as key and counter
/// (q_pos, k_pos / 4, head, batch) - word k_pos % 4 - each cut to 32 bits. The same on every backend.
[[nodiscard]] inline std::uint32_t dropout_bits(std::uint64_t seed, PairKey pair) {
  std::uint32_t c[4] = {static_cast<std::uint32_t>(pair.q_pos), static_cast<std::uint32_t>(pair.k_pos >> 2),
                        static_cast<std::uint32_t>(pair.head), static_cast<std::uint32_t>(pair.batch)};
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0], b = std::uint64_t{0xCD9E8D57u} * c[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c[pair.k_pos & 3];
}

/// A pair is kept when its bits are at least this.
[[nodiscard]] inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 4294967296.0);
}

}  // namespace usp::kernels
