// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster_flags.hpp"

#include "usp/planner/plan.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace usp::cli {

/// What the user has decided of a layout; what is empty is the planner's to choose.
struct FixedFlags {
  std::optional<int> ring, ulysses, data, tensor, head_chunks;
  std::string method, layout, dkv_return, order;
  bool ring_varies = false, ulysses_varies = false;  ///< a sweep has other degrees than those above

  /// Throws UsageError naming the flag: of no known word, or without an effect beside another.
  [[nodiscard]] Constraints constraints() const;
};
void add_fixed_flags(CLI::App& verb, FixedFlags& flags);

/// How schedules are executed and priced.
struct ExecutionFlags {
  std::string transport;
  bool no_overlap = false;
  std::string calibration;
  std::optional<std::size_t> top;

  [[nodiscard]] ExecutionOptions options() const;
  /// Candidates to keep.
  [[nodiscard]] std::size_t keep() const { return top.value_or(32); }
};
void add_execution_flags(CLI::App& verb, ExecutionFlags& flags);

/// Documents packed into a row, given or drawn.
struct DocumentFlags {
  std::string documents, document_lengths;
  std::optional<std::uint64_t> seed;

  /// Lengths for a row of `seq` tokens; empty: one document. Throws UsageError for a seed of no draw.
  [[nodiscard]] std::vector<std::int64_t> lengths(std::int64_t seq) const;
};
void add_document_flags(CLI::App& verb, DocumentFlags& flags, const char* group);

/// The flags that name a whole step, for every verb that plans one. Texts are parsed by load_step.
struct StepFlags {
  std::string model;
  std::shared_ptr<ClusterFlags> cluster;
  std::string seq;
  std::string dtype = "bf16";
  std::int64_t batch = 1;
  bool causal = false, full = false;
  DocumentFlags documents;
  bool forward_only = false;
  std::string recompute, zero, optimizer;
  std::int64_t microbatches = 1;
  int pipeline = 1, expert = 1;
  FixedFlags fixed;
  std::optional<double> reserve;
  std::string loss_tile, mlp_tile, memory;
  ExecutionFlags execution;
};

/// Adds all of them, the cluster's too.
std::shared_ptr<StepFlags> add_step_flags(CLI::App& verb);

/// A request with everything it points to.
struct StepInput {
  Cluster cluster;
  Calibration calibration;
  Model model;
  PlanRequest request;

  StepInput() = default;
  ~StepInput() = default;
  StepInput(const StepInput&) = delete;
  StepInput& operator=(const StepInput&) = delete;
};

/// Reads model, cluster and calibration. A card without a calibration is priced from its data sheet and a
/// note says so. Throws UsageError, InvalidInput, or MissingValue naming --device where no card is named.
[[nodiscard]] std::unique_ptr<StepInput> load_step(const StepFlags& flags, const Invocation& invocation);

/// The calibration of a cluster; its data sheet, with a note, where there is none.
[[nodiscard]] Calibration calibration_or_sheet(const Cluster& cluster, const std::string& name,
                                               const Invocation& invocation);

}  // namespace usp::cli
