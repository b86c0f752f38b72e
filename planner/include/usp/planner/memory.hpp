// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"
#include "usp/planner/parameters.hpp"
#include "usp/planner/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace usp {

enum class MemoryKind {
  parameters,
  gradients,
  optimizer,
  gathered_layer,
  activations,
  live_layer,
  attention_buffers,
  kv_copies,
  logits,
  communicators,
  reserve,
};

struct MemoryRow {
  MemoryKind kind = MemoryKind::parameters;
  std::string name;
  std::int64_t bytes = 0;
  std::string reason;  ///< one line: how the bytes come about
};

/// Bytes of one rank (the one of the pipeline stage that needs most). The rows sum to the totals exactly.
struct MemoryTable {
  std::vector<MemoryRow> rows;       ///< device memory
  std::vector<MemoryRow> host_rows;  ///< host memory of the same rank
  std::int64_t total_bytes = 0;
  std::int64_t host_total_bytes = 0;
  int stage = 0;  ///< pipeline stage the table is for

  /// Sum of the device rows of one kind.
  [[nodiscard]] std::int64_t bytes_of(MemoryKind kind) const;
};

/// Degrees of the mesh; the ranks of one replica's pipeline stage are tensor x ring x ulysses.
struct MeshDegrees {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t ring = 1;
  std::int64_t ulysses = 1;
  std::int64_t pipeline = 1;
  std::int64_t expert = 1;  ///< taken from the data x ring x ulysses ranks

  [[nodiscard]] std::int64_t sharding_ranks() const { return data * ring * ulysses; }
};

/// A buffer that the attention schedule needs, from its workspace.
struct MemoryLine {
  std::string name;
  std::int64_t bytes = 0;
  std::string reason;
};

/// Attention state of one layer on a rank, from its schedule: what the runtime keeps from forward to
/// backward.
struct AttentionState {
  double saved_bytes = 0;      ///< row buffers: Prepared::saved_bytes
  bool keeps_home_qkv = true;  ///< backward reads q, k and v of the home layout too
};

/// A group of ranks that NCCL joins.
struct CommunicatorGroup {
  std::string name;
  /// Sets of buffers: one for collectives, or for all peers behind NICs; one for each peer inside a host.
  std::int64_t buffers = 1;
};

struct MemoryInput {
  const Model* model = nullptr;
  const ParameterCount* parameters = nullptr;  ///< count_parameters(*model)
  const Workload* workload = nullptr;
  MeshDegrees mesh = {};
  std::int64_t local_tokens = 0;  ///< tokens on this rank in one microbatch (all its rows)
  std::map<std::size_t, AttentionState> attention_state =
      {};                                             ///< by layer kind; others keep q, k, v, out, lse
  std::vector<MemoryLine> attention_buffers = {};     ///< of the exchange method
  std::vector<MemoryLine> kv_copies = {};             ///< keys and values of others that this rank holds
  std::int64_t communicator_bytes = 0;                ///< of one set of NCCL's buffers
  std::vector<CommunicatorGroup> communicators = {};  ///< that the rank takes part in
  double reserve_fraction = 0;                        ///< of all other device rows: allocator fragmentation
  std::int64_t loss_tile_tokens = 0;                  ///< logits of so many tokens at a time; 0: of all
  std::int64_t mlp_tile_tokens = 0;                   ///< MLP of so many tokens at a time; 0: of all
  std::int64_t gathered_layers = 2;  ///< ZeRO-3: layers whole at once (the running one and those prefetched)
  bool reasons = true;               ///< rows say how their bytes come about: for what is printed
};

/// Memory of one rank. Throws MissingValue when the model leaves unknown what a row needs (vocabulary, MLP),
/// and InvalidInput when the degrees cannot split the model.
///
/// Tensor parallelism splits heads, MLP width, experts' width and vocabulary, and with sequence parallelism
/// the tokens of everything between. Gradient-accumulation microbatches run one after the other unless there
/// is a pipeline, whose first stage holds as many as there are stages; with v virtual stages per rank
/// (2 (p - 1) + (v - 1) p + 1) / v (Megatron-LM's interleaved schedule).
[[nodiscard]] MemoryTable memory_per_rank(const MemoryInput& input);

/// Microbatches whose activations stage `stage` of a pipeline of `stages` keeps at once.
[[nodiscard]] double in_flight_microbatches(const Workload& workload, std::int64_t stages, int stage);

/// Bytes that logits of some tokens take in training: in the model's type, an fp32 copy and its fp32
/// gradient.
struct LogitsBytes {
  std::int64_t logits = 0;
  std::int64_t fp32_copy = 0;
  std::int64_t gradient = 0;
  [[nodiscard]] std::int64_t total() const { return logits + fp32_copy + gradient; }
};
[[nodiscard]] LogitsBytes logits_bytes(std::int64_t tokens, std::int64_t vocab, const Workload& workload);

/// Activations of one layer that its backward pass reads, in bytes for one token, split by what recompute
/// drops. For flash attention with a gated MLP: e (4h + 2 Hq d + 2 Hkv d + 3f) + 4 Hq, e bytes per element.
struct LayerActivations {
  double checkpoint = 0;  ///< the layer's input
  double qkv = 0;         ///< of a softmax layer
  double lse = 0;         ///< of a softmax layer
  double attention = 0;   ///< q, k, v, output, lse, gate; conv and gate inputs of a linear layer
  double mlp_input = 0;   ///< the MLP's normalised input
  double norms = 0;       ///< inputs of the norms
  double mlp = 0;         ///< gate, up and their product; tokens routed to experts
  double alternate = 0;  ///< outputs of every second product: q, v, the first into the MLP, the one out of it
  double gathered = 0;   ///< live only: a layer's input with the tokens of all tensor ranks

  [[nodiscard]] double total() const { return checkpoint + attention + mlp_input + norms + mlp; }
};
/// What tensor ranks split beside heads and widths.
struct TensorSplit {
  bool sequence_parallel = true;  ///< inputs, norms and residuals by tokens
  double expert_load = 1;         ///< tokens of the busiest expert rank over the mean
  bool expert_tensor = true;      ///< each expert's width, so that they hold its tokens whole
};
/// What one mixer of that kind adds to `attention`, `qkv`, `lse` and `alternate`.
[[nodiscard]] LayerActivations mixer_activations(const Model& model, const LayerKind& kind, Precision dtype,
                                                 std::int64_t tensor);
[[nodiscard]] LayerActivations layer_activations(const Model& model, int layer, Precision dtype,
                                                 std::int64_t tensor, const TensorSplit& tensors = {});

}  // namespace usp
