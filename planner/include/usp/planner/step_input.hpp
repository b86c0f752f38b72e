// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/planner/model.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/topology/cluster.hpp"
#include "usp/topology/compose.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Requests to plan a step, from names to values.
namespace usp {

/// Files, presets and options that the model, the cluster and the calibration of a request are read from.
struct StepSources {
  std::string model;                        ///< config.json, "-" for stdin, or a preset's name
  std::optional<std::string> model_config;  ///< text of a config.json; `model` then names it in messages
  std::vector<std::string> model_keys;      ///< keys of its language part to set first, "KEY=VALUE"
  topology::ClusterRequest cluster;
  std::string calibration;  ///< file or shipped calibration; empty: that of the cluster
  bool data_sheet = false;  ///< priced from the card's data sheet, even where the cluster has a calibration
};

/// A request with everything it points to.
struct StepInput {
  topology::Cluster cluster;
  Calibration calibration;
  Model model;
  PlanRequest request;

  StepInput() = default;
  ~StepInput() = default;
  StepInput(const StepInput&) = delete;
  StepInput& operator=(const StepInput&) = delete;
};

/// A request to plan one attention call, with what it points to.
struct AttentionInput {
  topology::Cluster cluster;
  Calibration calibration;
  AttentionRequest request;

  AttentionInput() = default;
  ~AttentionInput() = default;
  AttentionInput(const AttentionInput&) = delete;
  AttentionInput& operator=(const AttentionInput&) = delete;
};

/// Takes remarks for people.
using NoteSink = std::function<void(const std::string&)>;

/// Composes a cluster. Notes: those of its readers, and that no card is named.
[[nodiscard]] topology::Cluster load_cluster(const topology::ClusterRequest& request, const NoteSink& note);

/// The calibration of that name, else that of the cluster; its data sheet, with a note, where there is none.
[[nodiscard]] Calibration calibration_or_sheet(const topology::Cluster& cluster, const std::string& name,
                                               const NoteSink& note);

/// Reads model, cluster and calibration, in this order, and points the request to them. Throws UsageError,
/// InvalidInput, or MissingValue naming --device where no card is named.
void load_sources(const StepSources& sources, StepInput& input, const NoteSink& note);

/// Options of schedules over a transport: NCCL exchanges through pack kernels.
[[nodiscard]] ExecutionOptions execution_options(Transport transport);

/// Reads a request to plan a step and loads what it names (schema:
/// configs/schema/plan_request.v2.schema.json). It takes the key "request" that `usp plan --json` prints; its
/// cluster is then a preset's name, and another size or digest is refused. Throws InvalidInput naming file
/// and JSON pointer for unknown keys and words, wrong types, values out of range, and choices without effect.
[[nodiscard]] std::unique_ptr<StepInput> read_plan_request(const std::string& text, const std::string& file,
                                                           const NoteSink& note);

/// Reads a request to plan one attention call: cluster (as there, and where given calibration: a shipped
/// one's name or a file) or ranks (threads of this host); shape {tokens, query_heads, head_dim_qk, and where
/// given batch, kv_heads, head_dim_v, dtype}; and where given causal, window (tokens, or [before, after]),
/// scale, softcap, dropout, sink, return_lse, backend, documents (lengths), kv_documents (keys of each in
/// packed cross attention), training, fixed, execution and max_candidates (the last three as there). Throws
/// as read_plan_request.
[[nodiscard]] std::unique_ptr<AttentionInput> read_attention_request(const std::string& text,
                                                                     const std::string& file,
                                                                     const NoteSink& note);

}  // namespace usp
