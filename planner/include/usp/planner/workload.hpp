// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/limits.hpp"
#include "usp/schedule/plan_inputs.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// What is to be run in one step.
struct Workload {
  std::int64_t seq = 0;    ///< tokens of one sequence row
  std::int64_t batch = 1;  ///< rows per data-parallel replica in one step, all microbatches together
  Precision dtype = Precision::bf16;
  bool causal = true;
  /// Lengths of the documents packed into a row, summing to seq; empty: one document.
  std::vector<std::int64_t> documents = {};
  bool training = true;  ///< false: forward only
  Recompute recompute = Recompute::full;
  int zero_stage = 3;  ///< 0..3, over data x sequence ranks
  Optimizer optimizer = Optimizer::adamw;
  bool fp32_gradients = false;    ///< accumulated in fp32: 18 bytes per parameter with adamw, else 16
  std::int64_t microbatches = 1;  ///< batch rows are split into so many; divides batch
  int pipeline = 1;               ///< pipeline stages
  int virtual_stages = 1;  ///< model chunks per pipeline rank: more than one is the interleaved schedule
  int expert = 1;          ///< expert-parallel ranks, taken from expert_pool
  /// Norms, residuals and layer inputs are split by tokens over the tensor ranks (Megatron's sequence
  /// parallelism), so that each holds 1 / tensor of them; else every tensor rank holds them whole.
  bool sequence_parallel = true;
  /// Tensor ranks split each expert's width; else they hold whole experts, and expert groups span them.
  bool expert_tensor = true;
  double expert_load = 1;  ///< tokens of the busiest expert rank over the mean
  /// Layers that compute again what `recompute` says; the others keep everything. Empty: all layers.
  std::optional<std::int64_t> recompute_layers = {};
  /// Of Recompute::keep_attention: outputs of every second product are kept too, as PyTorch's checkpointing
  /// by operator does.
  bool alternate_products = false;
  Offload offload = {};  ///< of what is kept; Recompute::offload adds layer inputs
  /// Layers whose tensors go to host memory; the others keep them on the device. Empty: all layers.
  std::optional<std::int64_t> offload_layers = {};

  [[nodiscard]] std::int64_t rows_per_microbatch() const { return batch / microbatches; }
  /// Ranks that expert groups are taken from. @param shards data x sequence ranks
  [[nodiscard]] std::int64_t expert_pool(std::int64_t shards, std::int64_t tensor) const {
    return expert_tensor ? shards : shards * tensor;
  }
  [[nodiscard]] std::int64_t tokens() const { return seq * batch; }  ///< per data-parallel replica and step
};

/// Throws InvalidInput when a row is packed of more than max_documents (limits.hpp). @param file of the
/// documents, or the flag
void check_document_count(std::int64_t count, const std::string& file);

[[nodiscard]] int bytes_of(Precision dtype);

/// Throws UsageError when the fields contradict each other (document sum, ranges, divisibility).
void check_workload(const Workload& workload);

[[nodiscard]] int parse_zero_stage(std::string_view text, std::string_view flag);

/// Of packed documents, or of the one that all `tokens` are where there are none.
[[nodiscard]] std::int64_t longest_document(const std::vector<std::int64_t>& documents, std::int64_t tokens);
/// A window of so many tokens before a query, itself not counted, and after it (empty: all) hides none of
/// `tokens`.
[[nodiscard]] bool masks_none(std::int64_t before, std::optional<std::int64_t> after, std::int64_t tokens);

/// Throws InvalidInput unless the lengths of packed documents sum to the tokens of a sequence.
void check_documents(const std::vector<std::int64_t>& lengths, std::int64_t tokens);

/// "4096,8k,0,1000": lengths of documents in tokens; 0 is an empty one. Throws UsageError naming `flag`.
[[nodiscard]] std::vector<std::int64_t> parse_document_lengths(std::string_view text, std::string_view flag);

/// One positive length per line; blank lines and lines that start with '#' are skipped. Throws InvalidInput
/// with file and line.
[[nodiscard]] std::vector<std::int64_t> read_document_lengths(const std::string& text,
                                                              const std::string& file);

/// Draws lengths with replacement until `tokens` are filled; the last document is cut. The same seed gives
/// the same documents on every machine. Throws InvalidInput when that takes more than max_documents.
[[nodiscard]] std::vector<std::int64_t> draw_documents(const std::vector<std::int64_t>& lengths,
                                                       std::int64_t tokens, std::uint64_t seed);

}  // namespace usp
