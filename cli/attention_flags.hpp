// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include "usp/planner/pricing.hpp"
#include "usp/schedule/placement.hpp"
#include "usp/schedule/plan.hpp"

#include <memory>
#include <optional>
#include <string>

namespace usp::cli {

/// The flags that name one attention call, for every verb that takes one.
struct AttentionFlags {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<int> head_dim_v;
  std::string seq;
  std::int64_t batch = 1;
  std::string dtype = "bf16";
  bool causal = false, full = false;
  std::string window;
  std::string documents;
  bool forward_only = false;

  /// Each parses what is kept as text and throws UsageError naming the flag.
  [[nodiscard]] AttentionShape shape() const;
  [[nodiscard]] Band band() const;
  /// Throws InvalidInput when the lengths do not sum to --seq.
  [[nodiscard]] Documents packed_documents() const;
};

/// Adds the group "Attention".
std::shared_ptr<AttentionFlags> add_attention_flags(CLI::App& verb);

/// The flags that say how a call is laid out and executed; what is empty is not decided.
struct LayoutFlags {
  std::optional<int> ring, ulysses, ring_inner, head_chunks;
  std::string layout, method, dkv_return, order;
  std::string transport = "copy_engine";
  bool no_overlap = false;
  bool prune = false;

  /// Layout of an attention call; what is empty takes the value named in --help.
  [[nodiscard]] AttentionPlan plan(const AttentionFlags& attention) const;
  [[nodiscard]] Placement placement() const;
  [[nodiscard]] ExecutionOptions execution() const;
};

/// Adds the group "Layout"; `required`: the degrees have to be given.
std::shared_ptr<LayoutFlags> add_layout_flags(CLI::App& verb, bool required);

}  // namespace usp::cli
