// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/backend.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/method.hpp"
#include "usp/schedule/types.hpp"

#include <utility>
#include <vector>

namespace usp {

/// Sizes of one attention call. Tokens are global; every batch row has the same documents.
struct AttentionShape {
  i64 batch = 1;
  i64 q_tokens = 0;
  i64 kv_tokens = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  DType dtype = DType::bf16;
};

/// A query at position x sees a key at position y of its document iff diff_min <= x - y <= diff_max.
/// Causal: (0, unbounded); a window of W: (0, W - 1); everything: (-unbounded, unbounded).
struct Band {
  i64 diff_min = -unbounded;
  i64 diff_max = unbounded;
  friend bool operator==(Band a, Band b) { return a.diff_min == b.diff_min && a.diff_max == b.diff_max; }
};

/// The documents of one packed batch, in global token order. Document i owns query tokens [cu_q[i],
/// cu_q[i+1]) and key tokens [cu_k[i], cu_k[i+1]); query token t has position t + shift[i] on the
/// scale of the key tokens (0 for self attention; aligns the two sides of cross attention).
struct Documents {
  std::vector<i64> cu_q;
  std::vector<i64> cu_k;
  std::vector<i64> shift;

  /// One document over everything. The last query has the position of the last key, whatever the mask: causal
  /// masks, windows and ALiBi distances count from there.
  [[nodiscard]] static Documents single(i64 q_tokens, i64 kv_tokens) {
    return {{0, q_tokens}, {0, kv_tokens}, {kv_tokens - q_tokens}};
  }
  /// Self attention over documents of the given cumulative lengths.
  [[nodiscard]] static Documents packed(std::vector<i64> cu_seqlens) {
    const std::size_t count = cu_seqlens.size() - 1;
    std::vector<i64> of_keys = cu_seqlens;
    return {std::move(cu_seqlens), std::move(of_keys), std::vector<i64>(count, 0)};
  }
  [[nodiscard]] std::size_t count() const { return shift.size(); }
};

/// What becomes of a visible pair's logit. What differs by head or step (ALiBi slopes, sink logits, the
/// dropout seed, the block pattern) comes with the call, not with the plan.
struct ScoreRules {
  double scale = 0;      ///< of q.k; 0: 1 / sqrt(head_dim_qk)
  double softcap = 0;    ///< cap * tanh(logit / cap); 0: none
  double dropout = 0;    ///< of probabilities, keyed by global (batch, head, query, key), in [0, 1)
  bool alibi = false;    ///< a slope per query head
  i64 block_tokens = 0;  ///< edge of the blocks of a per-head block pattern over global tokens; 0: none.
                         ///< Bytes and price are those of the mask without the pattern
  friend bool operator==(const ScoreRules& a, const ScoreRules& b) {
    return a.scale == b.scale && a.softcap == b.softcap && a.dropout == b.dropout && a.alibi == b.alibi &&
           a.block_tokens == b.block_tokens;
  }
};

/// The recipe of one attention call on a mesh: everything `generate` needs to lay out its schedule, except
/// the step's documents. Kilobytes for any number of ranks.
struct AttentionPlan {
  AttentionShape shape;
  Mesh mesh;
  Method method;
  LayoutKind layout = LayoutKind::zigzag;
  Band band;
  DkvReturn dkv_return = DkvReturn::circulate;
  int head_chunks = 1;
  bool prune = false;            ///< send only KV rows that some receiver's mask can see
  bool split_own_block = false;  ///< backward attends half of the heads of the own block in the last tick,
                                 ///< while the last partial dK/dV goes home. Not with DkvReturn::cycle, whose
                                 ///< own block travels first
  /// Remote blocks are attended in one call with the own one, which awaits each as it lands, instead of a
  /// second one behind all of them (schedule::may_gate says for which plans).
  bool gated = false;
  /// Calls of a gated forward pass, one after another: the own block, then growing lists of remote ones
  /// (schedule::blocks_through_phase), each of which awaits its own blocks alone. 1: one call for all.
  int gate_phases = 1;
  bool save_exchanged_qkv = true;  ///< backward finds q, k, v in row layout as forward left them
  bool sink = false;               ///< one learned logit per query head joins the softmax
  bool return_lse = false;         ///< forward returns lse in home layout too
  Backend backend;
  ScoreRules score;
  std::vector<Range> replicated_q;  ///< tokens that every rank holds; ascending, disjoint
  std::vector<Range> replicated_k;
};

}  // namespace usp
