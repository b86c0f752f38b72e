// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload_flags.hpp"

#include "usp/planner/calibration.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/words.hpp"

#include <optional>

namespace usp::cli {

/// How far a query sees: `before` and `after` tokens beside its own.
struct CallWindow {
  i64 before = 0;
  std::optional<i64> after;  ///< empty: one-sided, from a causal query back
};

/// "128" (tokens that a causal query sees, itself included) or "127,64" (tokens before and after it). Throws
/// UsageError naming `flag`.
[[nodiscard]] CallWindow parse_window(const std::string& text, const std::string& flag);

/// The flags that name one attention call.
struct CallFlags {
  WorkloadFlags<DType> workload;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<int> head_dim_v;
  std::optional<CallWindow> window;
  std::vector<i64> kv_documents;  ///< keys of each document in packed cross attention

  [[nodiscard]] AttentionShape shape() const;
  /// Throws UsageError for masks that exclude each other, and for a window that masks nothing.
  /// @param keys of cross attention; 0: the queries' own tokens
  [[nodiscard]] Band band(i64 keys = 0) const;
  /// Throws InvalidInput when the lengths do not sum to --seq.
  [[nodiscard]] Documents packed_documents() const;
};

/// Adds the group "Attention".
void add_call_flags(const Verb& verb, CallFlags& flags);
/// Notes that no kernel of a call's type was measured.
void note_guessed_type(DType dtype, const Calibration& calibration, const Invocation& invocation);
/// Adds --backend to it.
void add_backend_flag(const Verb& verb, std::optional<Backend>& backend);

}  // namespace usp::cli
