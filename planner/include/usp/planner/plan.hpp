// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/base/progress.hpp"
#include "usp/planner/guess.hpp"
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

/// What candidates are ranked by.
enum class Objective {
  throughput,  ///< tokens per second; replicas multiply the batch unless the global batch is given
  latency,     ///< seconds of the step that the given batch takes on all devices together
};

template <>
struct WordTable<Objective> {
  static constexpr Word<Objective> words[] = {{"throughput", Objective::throughput},
                                              {"latency", Objective::latency}};
};

/// A whole training or forward step to lay out on a cluster. Pointers must outlive the result.
struct PlanRequest {
  const topology::Cluster* cluster = nullptr;
  const Calibration* calibration = nullptr;
  const Model* model = nullptr;
  Workload workload;
  Constraints fixed;
  MemoryPolicy memory;
  ExecutionOptions execution;
  /// Rows of a step over all replicas; workload.batch and, unless fixed, its microbatches follow per
  /// candidate.
  std::optional<i64> global_batch;
  std::optional<Objective> objective;  ///< empty: throughput of training, latency of forward only
  bool search_expert = false;    ///< of a model with experts: workload.expert is the planner's to choose
  bool search_pipeline = false;  ///< workload.pipeline and its virtual stages are the planner's to choose
  /// Dispatch and combine of a microbatch run beside another one's compute (Megatron-Core's
  /// overlap_moe_expert_parallel_comm), with 20 of 132 multiprocessors, as DeepEP's and HybridEP's kernels
  /// take.
  bool expert_overlap = false;
  /// Rings of latent attention ship the latent, not the heads made of it. Priced alone: the runtime has no
  /// such schedule, and without this the plan that does so only stands after the others.
  bool latent_kv = false;
  bool search_offload = true;   ///< kinds of kept tensors, and of which layers, are the planner's to offload
  bool equal_stages = false;    ///< only pipelines whose stages and chunks hold equally many layers
  double gemm_efficiency = 0;   ///< share of the peak of every matrix product; 0: by shape and card
  double power_w = 0;           ///< power limit of a device; 0: that of its data sheet
  bool fp8_products = false;    ///< of the layers, not of logits; what else is 16-bit stays
  bool fused_pointwise = true;  ///< norms, activation and rotary embedding each in one kernel, as compiled
  bool flash_attention = true;  ///< else scores go through memory, masked ones too
  /// Attention kernels of an older generation than the calibration's: times as long, forward and backward.
  double older_forward = 1, older_backward = 1;
  double attention_band = 0;  ///< beside the calibration's: which kernels run is not known
  /// Backward reads q, k, v, output and lse as a library's kernels keep them; else what the runtime keeps.
  bool library_attention = false;
  /// Attention of a framework, priced by the kernels that the calibration prices with; else each kind of
  /// layer has a backend of the runtime and its kernels.
  bool library_kernels = false;
  std::optional<double> measured_step_s;  ///< of the best plan, for rescaled rates; no plan depends on it
  std::size_t max_candidates = 32;        ///< candidates to return
  WorkProgress* progress = nullptr;       ///< hears of the search, when given
};

[[nodiscard]] Objective objective_of(const PlanRequest& request);
/// Rows of a step over all replicas, where data parallelism may not change them.
[[nodiscard]] std::optional<i64> global_batch_of(const PlanRequest& request);

/// How a replica's batch and layers are split, where the planner decides it.
struct StepSplit {
  i64 batch = 1;  ///< rows of one replica
  i64 microbatches = 1;
  int pipeline = 1, virtual_stages = 1;
  int expert = 1;
  std::optional<i64> recompute_layers = {};
  std::optional<i64> offload_layers = {};
  i64 mlp_tile_tokens = 0;  ///< MLP of so many tokens at a time; 0: as the request's memory policy says
  bool operator==(const StepSplit&) const = default;
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
  bool gated = false;   ///< AttentionPlan::gated
  int gate_phases = 1;  ///< AttentionPlan::gate_phases
  Recompute recompute = Recompute::full;
  Offload offload = {};
  int zero_stage = 3;
  bool uneven_heads = false;
  bool latent_kv = false;               ///< the ring ships the latent of latent attention
  std::optional<StepSplit> split = {};  ///< empty: as the request's workload says
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

/// The request's workload as a choice splits it, without the list of documents.
[[nodiscard]] Workload workload_of(const PlanRequest& request, const Choice& choice);
/// Pipeline stages of a choice.
[[nodiscard]] int pipeline_of(const PlanRequest& request, const Choice& choice);

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
  bool fits_host = true;  ///< host memory of the ranks of a host, where its size is known
  double model_flops =
      0;              ///< of the step, all devices: forward once, backward twice, causal pairs, nothing twice
  double flop_s = 0;  ///< model_flops per second and device
  double mfu = 0;     ///< flop_s over the data-sheet peak of the type
  std::uint32_t extrapolation = 0;
  std::string unexecutable_reason = {};  ///< why the runtime cannot run what is priced; empty: it can
  [[nodiscard]] bool executable() const { return unexecutable_reason.empty(); }
};

/// A layout that is not a candidate, and why.
struct Rejection {
  int ring = 0, ulysses = 0, data = 0, tensor = 0;
  std::string reason;
};

/// What a flag that fixes a choice costs against leaving that choice to the planner.
struct FlagCost {
  std::string flag;     ///< "--ulysses 8"
  double slowdown = 0;  ///< seconds per token over those without it, minus one; below 0: it gains
  std::string without;  ///< the best layout without it
};

/// How sure the choice is.
struct Verdict {
  double margin = 0;                                   ///< runner-up over best, minus one
  bool tie = false;                                    ///< the bands of what differs overlap
  std::string runner_up;                               ///< how it differs from the best
  std::string alone;                                   ///< why there is no runner-up, where there is none
  std::vector<std::string> tie_breaking_measurements;  ///< commands; empty where there is no tie
  std::vector<GuessedInput> guesses;                   ///< unmeasured inputs that decide: each makes a tie
  std::vector<std::string> sensitive_terms;  ///< terms whose error alone, within its band, changes the choice
  std::vector<FlagCost> flag_costs;  ///< of fixed choices that cost something, and of --gated, the dearest
                                     ///< first
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
             double short_bytes)
      : Infeasible(problem, std::move(remedies)), needed_bytes_(needed_bytes), short_bytes_(short_bytes) {}
  [[nodiscard]] i64 needed_bytes() const noexcept { return needed_bytes_; }  ///< per device
  /// Needed beyond what there is: on a device, or on a host where that is what is missing.
  [[nodiscard]] double short_bytes() const noexcept { return short_bytes_; }

 private:
  i64 needed_bytes_;
  double short_bytes_;
};

/// What the rules of legality depend on, beside the mesh.
struct LegalityInput {
  const Model* model = nullptr;
  const Workload* workload = nullptr;
  i64 world = 0;  ///< devices
  int devices_per_node = 0;
  int head_chunks = 1;                   ///< where they are fixed
  std::optional<i64> global_batch = {};  ///< rows that the data-parallel replicas share
  const Constraints* fixed = nullptr;    ///< choices that not every ring has; null: none
};
/// Why a mesh is not allowed for these heads and tokens; empty when it is.
[[nodiscard]] std::string unsupported_reason(const LegalityInput& input, int tensor, int data,
                                             const Mesh& mesh);
/// Why fixed.gated has no meaning on a mesh, beside the other fixed choices, in words that read on from
/// "gated" or "--gated"; empty: it has, or is not asked for.
[[nodiscard]] std::string gates_refused(const Constraints& fixed, const Mesh& mesh);
/// Why fixed.gate_phases has no meaning on a ring (empty: of a length that is not fixed), likewise.
[[nodiscard]] std::string phases_refused(const Constraints& fixed, std::optional<int> ring);
/// Why the fixed method has not the fixed way of returning dK/dV: "dkv_return cycle follows ..."; empty: it
/// has, or they are not both fixed.
[[nodiscard]] std::string return_refused(const Constraints& fixed);
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

/// How much longer one term would have to be for the prediction to equal a measurement.
struct TermFactor {
  std::string name;
  double factor = 1;
};

/// A measured step beside the predicted one: rates of the measurement, and what could explain it.
struct MeasuredStep {
  double seconds = 0;
  double ratio = 1;  ///< over the prediction
  bool in_band = false;
  double tokens_s = 0, flop_s = 0, mfu = 0;  ///< all devices; per device; of the data-sheet peak
  std::vector<TermFactor> terms;  ///< each alone explains the difference; most plausible first: nearest to 1
};
[[nodiscard]] MeasuredStep measured_step(const PlanCandidate& candidate, double seconds);

/// The attention plan of one kind of layer under a choice (heads after tensor parallelism).
[[nodiscard]] AttentionPlan attention_plan(const PlanRequest& request, const Choice& choice,
                                           const LayerKind& kind);
[[nodiscard]] Documents attention_documents(const Workload& workload, const LayerKind& kind);
/// "ring 4 x ulysses 8, zigzag, double_ring, ..." in one line.
[[nodiscard]] std::string describe(const Choice& choice);

}  // namespace usp
