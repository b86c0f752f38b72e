// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/base/progress.hpp"
#include "usp/planner/memory.hpp"
#include "usp/planner/model.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/planner/workload.hpp"
#include "usp/schedule/plan_inputs.hpp"
#include "usp/schedule/words.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace usp {

/// A whole training or forward step to lay out on a cluster. Pointers must outlive the result.
struct PlanRequest {
  const topology::Cluster* cluster = nullptr;
  const Calibration* calibration = nullptr;
  const Model* model = nullptr;
  Workload workload;
  Constraints fixed;
  MemoryPolicy memory;
  ExecutionOptions execution;
  std::size_t max_candidates = 32;   ///< candidates to return
  WorkProgress* progress = nullptr;  ///< hears of the search, when given
};

/// One way to lay the step out.
struct Choice {
  Mesh mesh;
  Placement placement;
  Method method;
  LayoutKind layout = LayoutKind::zigzag;
  DkvReturn dkv_return = DkvReturn::circulate;
  int head_chunks = 1;
  bool prune = false;
  Recompute recompute = Recompute::full;
  int zero_stage = 3;
  bool uneven_heads = false;
  [[nodiscard]] int data() const { return placement.data; }
  [[nodiscard]] int tensor() const { return placement.tensor; }
};

/// A part of the step's time.
struct TimeTerm {
  std::string name;
  double seconds = 0;
  double band = 0;     ///< relative half width
  std::string reason;  ///< how it comes about, one line
};

/// Attention of one kind of layer.
struct LayerAttention {
  std::size_t kind = 0;  ///< index into Model::kinds
  AttentionPlan plan;
  AttentionPrice price;  ///< of one layer, one microbatch
};

struct PlanCandidate {
  Choice choice;
  double step_s = 0;
  double seconds_per_token =
      0;  ///< step_s over all tokens of the step, all replicas: what candidates are ranked by
  double band = 0;
  std::vector<TimeTerm> terms;  ///< sum to step_s
  std::vector<LayerAttention> attention;
  MemoryTable memory;
  bool fits = false;
  std::uint32_t extrapolation = 0;
};

/// A layout that is not a candidate, and why.
struct Rejection {
  int ring = 0, ulysses = 0, data = 0, tensor = 0;
  std::string reason;
};

/// How sure the choice is.
struct Verdict {
  double margin = 0;                                   ///< runner-up over best, minus one
  bool tie = false;                                    ///< the bands of what differs overlap
  std::string runner_up;                               ///< how it differs from the best
  std::string alone;                                   ///< why there is no runner-up, where there is none
  std::vector<std::string> tie_breaking_measurements;  ///< for nccl-tests; empty where there is no tie
  std::vector<std::string> sensitive_terms;  ///< terms whose error alone, within its band, changes the choice
};

struct PlanResult {
  std::vector<PlanCandidate> candidates;  ///< those that fit, best first; then the nearest that do not
  std::vector<std::size_t> pareto;        ///< indices into candidates: no other is both faster and smaller
  std::vector<Rejection> rejected;
  Verdict verdict;
  CalibrationSummary calibration;
  i64 considered = 0;  ///< attention schedules priced
  std::vector<std::string> notes;
  [[nodiscard]] bool feasible() const { return !candidates.empty() && candidates.front().fits; }
  [[nodiscard]] const PlanCandidate& best() const { return candidates.front(); }
};

/// No plan fits the devices: the smallest one and what it needs.
class DoesNotFit : public Infeasible {
 public:
  DoesNotFit(const std::string& problem, std::vector<std::string> remedies, i64 needed_bytes,
             double device_bytes)
      : Infeasible(problem, std::move(remedies)), needed_bytes_(needed_bytes), device_bytes_(device_bytes) {}
  [[nodiscard]] i64 needed_bytes() const noexcept { return needed_bytes_; }
  [[nodiscard]] double device_bytes() const noexcept { return device_bytes_; }

 private:
  i64 needed_bytes_;
  double device_bytes_;
};

/// What the rules of legality depend on, beside the mesh.
struct LegalityInput {
  const Model* model = nullptr;
  const Workload* workload = nullptr;
  i64 world = 0;  ///< devices
  int devices_per_node = 0;
  int head_chunks = 1;  ///< where they are fixed
};
/// Why a mesh is not allowed for these heads and tokens; empty when it is.
[[nodiscard]] std::string unsupported_reason(const LegalityInput& input, int tensor, int data,
                                             const Mesh& mesh);
/// Degrees U <= query_heads that split evenly: query_heads % U == 0 and (kv_heads % U == 0 or U % kv_heads ==
/// 0).
[[nodiscard]] bool even_degree(i64 query_heads, i64 kv_heads, int ulysses);

/// Whether the degrees that the request fixes can make up the cluster. Throws Infeasible that says what they
/// make instead and which degree would do.
void check_degrees(const PlanRequest& request);

/// Exhaustive search over data x tensor x (ring x ulysses) x placement x method x layout x head chunks x dKV
/// return, with memory choices decided per mesh. Throws Infeasible when nothing fits, naming what would;
/// MissingValue when an input leaves unknown what is needed.
[[nodiscard]] PlanResult plan_step(const PlanRequest& request);

/// Prices exactly one layout of the request (all of fixed's degrees given).
[[nodiscard]] PlanCandidate price_choice(const PlanRequest& request, const Choice& choice);

/// The attention plan of one kind of layer under a choice (heads after tensor parallelism).
[[nodiscard]] AttentionPlan attention_plan(const PlanRequest& request, const Choice& choice,
                                           const LayerKind& kind);
[[nodiscard]] Documents attention_documents(const Workload& workload, const LayerKind& kind);
/// "ring 4 x ulysses 8, zigzag, double_ring, ..." in one line.
[[nodiscard]] std::string describe(const Choice& choice);

}  // namespace usp
