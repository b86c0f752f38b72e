// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster_flags.hpp"
#include "mesh_flags.hpp"
#include "workload_flags.hpp"

#include "usp/planner/step_input.hpp"

#include <memory>
#include <optional>
#include <string>

namespace usp::cli {

/// The flags of a search for a layout, of a step or of one call.
struct SearchFlags {
  ClusterFlags cluster;
  MeshFlags mesh;
  ExecutionFlags execution;
  std::optional<std::size_t> top;

  /// Candidates to keep.
  [[nodiscard]] std::size_t keep() const { return top.value_or(PlanRequest{}.max_candidates); }
};
/// Adds the group "Execution". Cluster and mesh have groups of their own.
void add_search_flags(const Verb& verb, SearchFlags& flags);

/// Documents drawn from a file.
struct DrawFlags {
  std::string document_lengths;
  std::optional<std::uint64_t> seed;
};

/// The flags that name a whole step, for every verb that plans one.
struct StepFlags {
  std::string model;
  std::vector<std::string> model_keys;  ///< "KEY=VALUE"
  WorkloadFlags<Precision> workload;
  DrawFlags draw;
  std::optional<Optimizer> optimizer;
  std::optional<i64> microbatches;
  std::string pipeline;  ///< stages, or "auto"; empty: 1
  int virtual_stages = 1;
  std::optional<int> expert;
  std::optional<std::string> global_batch;
  std::optional<Objective> objective;
  std::optional<Precision> gradients;
  std::optional<i64> recompute_layers;
  std::optional<i64> offload_layers;
  bool no_sequence_parallel = false, whole_experts = false, overlap_experts = false, latent_kv = false;
  std::optional<double> expert_load;
  double gemm_efficiency = 0, power_w = 0;
  SearchFlags search;  ///< --recompute and --zero among its constraints
  MemoryPolicy memory;
};

/// Adds --model-key.
void add_model_keys(const Verb& verb, std::vector<std::string>& keys);

/// Adds all of them, the cluster's too.
void add_step_flags(const Verb& verb, StepFlags& flags);

/// Reads model, cluster and calibration. A card without a calibration is priced from its data sheet and a
/// note says so. Throws UsageError, InvalidInput, or MissingValue naming --device where no card is named.
/// `swept`: degrees that --sweep varies.
[[nodiscard]] std::unique_ptr<StepInput> load_step(const StepFlags& flags, const Invocation& invocation,
                                                   SweptDegrees swept = {});

}  // namespace usp::cli
