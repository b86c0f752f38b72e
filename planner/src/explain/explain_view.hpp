// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/explain.hpp"
#include "usp/schedule/expand.hpp"

#include <optional>
#include <string>
#include <vector>

/// What `usp explain` shows, gathered once for text and JSON.
namespace usp {

/// Where one rank's tokens and heads are.
struct RankView {
  int rank = 0, ring = 0, ulysses = 0;
  i64 tokens = 0;
  std::vector<Run> runs;        ///< of its own query tokens, ascending
  Range query_heads, kv_heads;  ///< that it attends
  std::vector<int> devices;     ///< one per group of the first pipeline stage
};

/// Messages of one transfer with the same tensors and ticks, over all peers.
struct MessageView {
  std::string move;  ///< "qkv_all_to_all", "kv_exchange", ...
  std::string what;  ///< "q", "k v"
  bool send = false;
  bool add = false;
  bool early = false;  ///< it may travel from the tick before on
  DType wire = DType::bf16;
  int start = 0, due = 0;
  std::vector<int> peers;
  i64 bytes = 0;
};

struct StepView {
  std::string kind;  ///< "attend", "delta", "attend_grad"
  Range query_heads, kv_heads;
  std::size_t slices = 0;
  i128 pairs = 0;              ///< visible (query, key) pairs per head
  i64 q_rows = 0, k_rows = 0;  ///< summed over the slices
  schedule::StepBackend backend;
  std::optional<Backend> left_to;  ///< what takes the slices that a backend leaves; empty: it leaves none
  std::string reason;              ///< of the backend; empty: the plan asks for no other
  bool joined = false;             ///< in the call of the step before
  std::vector<int> awaits;         ///< ranks whose keys it awaits, one after another
};

struct BindView {
  std::string name;
  std::string fill;
  i64 rows = 0, heads = 0, width = 0, bytes = 0;
  int first = 0, last = 0;
  bool internal = false;
};

struct TickView {
  std::vector<BindView> binds;
  std::vector<MessageView> posts;
  std::vector<StepView> steps;
  std::vector<MessageView> arrivals;
};

struct ExplainView {
  std::vector<RankView> ranks;
  bool has_schedule = false;
  std::vector<TickView> ticks;
  i64 workspace_bytes = 0;
  i64 kernel_scratch_bytes = 0;
  i64 sent_bytes = 0, received_bytes = 0;
  std::vector<std::string> why;
};

[[nodiscard]] ExplainView explain_view(const PlanFile& plan, const ExplainRequest& request);

}  // namespace usp
