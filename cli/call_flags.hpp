// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload_flags.hpp"

#include "usp/schedule/plan.hpp"
#include "usp/schedule/words.hpp"

#include <optional>

namespace usp::cli {

/// The flags that name one attention call.
struct CallFlags {
  WorkloadFlags<DType> workload;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<int> head_dim_v;
  std::optional<i64> window;

  [[nodiscard]] AttentionShape shape() const;
  /// Throws UsageError for masks that exclude each other.
  [[nodiscard]] Band band() const;
  /// Throws InvalidInput when the lengths do not sum to --seq.
  [[nodiscard]] Documents packed_documents() const;
};

/// Adds the group "Attention".
void add_call_flags(const Verb& verb, CallFlags& flags);

}  // namespace usp::cli
