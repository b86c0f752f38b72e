// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"
#include "usp/schedule/plan_file.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What training and serving frameworks can do of a plan. A framework is one record, FrameworkTraits, in one
/// file of src/framework: its modes of exchange, limits, and the names of its settings, with version and
/// source. `usp export`, `usp plan --framework` and `usp compare` read the records.
namespace usp {

struct ExportedPlan;
struct ExportInput;

/// One way in which a framework exchanges q, k, v and outputs between the ranks of a sequence, in the terms
/// of a plan.
struct ExchangeMode {
  std::string_view word;                        ///< as the framework names it: "a2a+p2p"
  bool ring = false, ulysses = false;           ///< axes that may have more than one rank
  bool both = false;                            ///< and both must
  Method method;                                ///< of the ring axis
  LayoutKind layout = LayoutKind::zigzag;       ///< of causal attention over a ring
  DkvReturn dkv_return = DkvReturn::circulate;  ///< of a ring
  std::optional<AxisOrder> order;               ///< the only one; empty: either
  bool repeats_kv = false;  ///< KV heads are repeated until every Ulysses rank has one of its own
  bool overlap = true;      ///< transfers fly beside attention
  bool packed = false;      ///< q, k and v of one exchange travel together
  bool whole_mask = false;  ///< scores that the causal mask hides are computed too
  bool window = false;      ///< takes sliding windows
  bool sinks = false;       ///< takes sink logits
  bool documents = true;    ///< takes packed documents
  bool tensor = true;       ///< beside tensor parallelism
};

struct FrameworkTraits {
  std::string_view word;     ///< of --to and --framework
  std::string_view name;     ///< what it is
  std::string_view version;  ///< that names and limits were read from
  std::string_view source;   ///< where
  std::vector<ExchangeMode> modes;
  bool any_plan = false;                ///< takes every plan of this project; modes are not read
  bool training = true, causal = true;  ///< else forward only, full masks only
  bool tensor = true, pipeline = true, expert = true;  ///< axes beside data and the sequence
  bool tensor_divides_kv = false;                      ///< tensor parallelism does not repeat KV heads
  int sequence_multiple = 1;     ///< tokens are a multiple of this times the ranks of the sequence
  bool equal_stages = false;     ///< `plan` keeps to pipeline stages and chunks of equally many layers
  bool fewer_at_ends = false;    ///< but the first and last of a given number of stages may hold fewer
  bool some_layers = false;      ///< can recompute some layers and keep the others
  bool offloads_layers = false;  ///< can offload all that some layers keep, without recompute and pipeline
  std::vector<int> zero_stages;  ///< that it has
  std::vector<Recompute> recomputes;  ///< that it has; empty: all
  std::string_view script;            ///< that launch lines start, where no other is named
  bool launcher_arguments = false;    ///< arguments are the launcher's, before the script; else the script's
  /// Adds settings, files, environment, notes and what of the plan has no counterpart.
  void (*write)(const ExportInput& input, ExportedPlan& result) = nullptr;
  /// The command that starts the processes of one host; empty: torchrun.
  std::string (*start)(const ExportInput& input, const std::string& node_rank) = nullptr;
};

/// In the order of --help.
[[nodiscard]] const std::vector<const FrameworkTraits*>& frameworks();
/// "megatron, deepspeed, ..."
[[nodiscard]] std::string framework_words();
/// Throws UsageError naming `flag`, the words and the nearest.
[[nodiscard]] const FrameworkTraits& framework_named(const std::string& word, const std::string& flag);

/// Heads of one kind of layer as its attention sees them, after tensor parallelism.
struct LayerNeeds {
  i64 query_heads = 0, kv_heads = 0;
  bool window = false, chunked = false, sinks = false, linear = false;
};

/// A job as far as frameworks have limits on it.
struct FrameworkCase {
  i64 seq = 0;
  bool training = true, causal = true, documents = false;
  int tensor = 1, pipeline = 1, expert = 1;
  i64 kv_heads = 0;  ///< least of all softmax layers, before tensor parallelism; 0: not known
  std::vector<LayerNeeds> layers;
};
[[nodiscard]] FrameworkCase framework_case(const PlanFile& plan);
[[nodiscard]] FrameworkCase framework_case(const PlanRequest& request, int tensor);

/// Why a framework cannot take the job whatever its mode; empty where it can.
[[nodiscard]] std::string unsupported_job(const FrameworkTraits& framework, const FrameworkCase& job);
/// Why a mode cannot take it on ring x ulysses ranks; empty where it can.
[[nodiscard]] std::string unsupported_mode(const FrameworkTraits& framework, const ExchangeMode& mode,
                                           const FrameworkCase& job, int ring, int ulysses);

/// The attention plan of a mode: `base` with the mode's mesh, method, layout, heads and mask.
[[nodiscard]] AttentionPlan mode_plan(const ExchangeMode& mode, const AttentionPlan& base, int ring,
                                      int ulysses);
/// How the framework executes it: over NCCL, through pack kernels.
[[nodiscard]] ExecutionOptions mode_execution(const ExchangeMode& mode);

}  // namespace usp
