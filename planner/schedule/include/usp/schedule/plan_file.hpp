// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/placement.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/plan_inputs.hpp"
#include "usp/schedule/recompute.hpp"
#include "usp/schedule/step_backends.hpp"
#include "usp/schedule/transport.hpp"

#include <optional>
#include <string>
#include <vector>

/// The plan file: the recipe that `usp plan -o` writes and that `expand` and the runtime read. A few
/// kilobytes for any number of ranks; the explicit schedule of a rank follows from it.
namespace usp {

/// What one pass of one layer is predicted to take.
struct PassPrediction {
  double seconds = 0;
  double band = 0;
  i64 sent_bytes = 0;      ///< of the rank that sends most; exact for the planned documents
  i64 received_bytes = 0;  ///< of the rank that receives most; exact
  i64 workspace_bytes = 0;
  std::optional<schedule::StepBackends>
      steps;  ///< of the planned documents; counted where the workspace is exact
};

/// One kind of attention layer, or the one call of `usp plan attention`.
struct PlanLayer {
  std::string kind;         ///< "softmax", "sliding", "chunked"
  std::vector<int> layers;  ///< of the model, 0-based; empty for a single call
  int per_layer = 1;        ///< calls of this kind in each of them
  i64 chunk_tokens = 0;     ///< documents are cut again at multiples of this; 0: they are not
  AttentionPlan plan;
  PassPrediction forward;
  PassPrediction backward;  ///< zero when forward only

  /// In one pass over the model.
  [[nodiscard]] i64 calls() const { return layers.empty() ? 1 : static_cast<i64>(layers.size()) * per_layer; }
};

/// How WorkspaceBytes were found.
enum class WorkspaceBasis {
  exact,  ///< packed workspace of the explicit schedule, the rank with most
  bound,  ///< live bytes of the compact schedule: no rank needs more, alignment apart
};

struct PlanFile {
  std::string model;  ///< names, for people
  std::string cluster;
  bool training = true;
  Mesh mesh;
  Placement placement;
  int pipeline = 1;
  Recompute recompute = Recompute::none;
  int zero_stage = 0;
  i64 capacity_tokens = 0;  ///< a step's batch may not exceed these: memory was planned for them
  i64 capacity_documents = 0;
  std::vector<i64> documents;  ///< lengths the plan was priced with; empty: one document
  std::vector<i64>
      kv_documents;  ///< key tokens of each of these in cross attention; empty: as many as queries
  std::vector<PlanLayer> layers;
  Transport ulysses_transport = Transport::copy_engine;
  Transport ring_transport = Transport::copy_engine;
  bool overlap = true;
  double step_s = 0;  ///< predicted; of a single call: both passes
  double step_band = 0;
  i64 memory_bytes = 0;       ///< per device; 0: not planned (a single call)
  i64 host_memory_bytes = 0;  ///< per rank, of tensors that wait there; 0: none, or not planned
  std::string calibration;
  WorkspaceBasis workspace = WorkspaceBasis::exact;
  PlanInputs inputs;
  std::string model_digest, workload_digest, cluster_digest;
};

/// A layer by its place. Throws UsageError naming --layer when there is none.
[[nodiscard]] const PlanLayer& layer_at(const PlanFile& plan, std::size_t index);

/// Refuses another batch than the planned one where a layer is cross attention, and one of more documents
/// than the plan has room for (UsageError naming --documents).
void check_other_batch(const PlanFile& plan, const PlanLayer& layer, const std::vector<i64>& lengths);

/// Documents of these lengths, each cut into chunks that attend to themselves alone. Throws InvalidInput
/// where they are more than max_documents.
[[nodiscard]] Documents chunked_documents(const std::vector<i64>& lengths, i64 chunk);

/// Documents of a layer for the lengths of a batch (empty: one document).
[[nodiscard]] Documents layer_documents(const PlanLayer& layer, const std::vector<i64>& lengths,
                                        const std::vector<i64>& kv_lengths = {});

/// Packed cross attention: document i has so many queries and so many keys, either of which may be none.
/// Causal masks align the last query of a document with its last key. As many lengths of keys as of queries.
[[nodiscard]] Documents cross_documents(const std::vector<i64>& query_lengths,
                                        const std::vector<i64>& kv_lengths);

/// JSON (schema: configs/schema/plan.v2.schema.json), with the digest of everything else in it.
[[nodiscard]] std::string write_plan(const PlanFile& plan);

/// Reads it back, equal to what was written. Throws InvalidInput for unknown keys or words, values out of
/// range, a mesh that does not match its placement, and a digest that does not match: the file was changed.
[[nodiscard]] PlanFile read_plan(const std::string& text, const std::string& file);

/// Digest of the canonical JSON: two ranks with equal digests hold the same recipe.
[[nodiscard]] std::string plan_digest(const PlanFile& plan);

}  // namespace usp
