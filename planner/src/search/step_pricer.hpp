// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layer_work.hpp"

#include "usp/planner/plan.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace usp {

/// Everything about a request that does not depend on the choice, and the pricers that choices share.
class StepPricer {
 public:
  /// Throws MissingValue when cluster or model leave unknown what a step needs.
  /// @param links of the same cluster and calibration, shared with other requests; none: made here
  explicit StepPricer(const PlanRequest& request, std::shared_ptr<LinkPricer> links = nullptr);

  /// Why the attention of a choice is too much work to price; empty: it is not.
  [[nodiscard]] std::string too_much_work(const Choice& choice);
  /// Attention of all layers of one microbatch under a choice: forward and backward seconds.
  [[nodiscard]] std::vector<LayerAttention> attention(const Choice& choice);
  /// Seconds of a microbatch's attention on one device, with as many forward passes as full recompute takes.
  [[nodiscard]] double attention_seconds(const std::vector<LayerAttention>& attention) const;

  /// Memory of the attention schedules: a workspace that all layers share, and the state of each kind of
  /// layer.
  struct AttentionMemory {
    double workspace = 0;  ///< fullest tick of any layer's pass
    double kv_copies = 0;  ///< of these, keys and values of other rows
    Pass pass = Pass::forward;
    double sums = 0;  ///< gradients before they are rounded, the greatest of all layers
    std::map<std::size_t, AttentionState> state;  ///< by layer kind
  };
  [[nodiscard]] AttentionMemory attention_memory(const Choice& choice,
                                                 const std::vector<LayerAttention>& attention);

  /// Time terms and memory of a choice whose attention is priced; `attention` of the result is left empty.
  /// @param reasons memory rows say how their bytes come about
  [[nodiscard]] PlanCandidate candidate(const Choice& choice, const std::vector<LayerAttention>& attention,
                                        const AttentionMemory& memory, bool reasons) const;

  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] double device_bytes() const { return device_bytes_; }
  [[nodiscard]] double host_bytes() const { return host_bytes_; }  ///< of a host; 0: not known
  /// Memory of a candidate over what there is, of the device or the host, whichever is fuller.
  [[nodiscard]] double overfull(const PlanCandidate& c) const {
    return std::max(static_cast<double>(c.memory.total_bytes) / device_bytes_, host_overfull(c));
  }
  /// Of the host alone; 0: its memory is not known.
  [[nodiscard]] double host_overfull(const PlanCandidate& c) const {
    return host_bytes_ > 0 ? bytes_on_host(c) / host_bytes_ : 0;
  }
  /// Of all ranks of a host.
  [[nodiscard]] double bytes_on_host(const PlanCandidate& c) const {
    return static_cast<double>(c.memory.host_total_bytes) * devices_per_node_;
  }
  [[nodiscard]] int devices_per_node() const { return devices_per_node_; }
  [[nodiscard]] i64 world() const { return world_; }
  [[nodiscard]] i64 priced() const { return priced_; }
  [[nodiscard]] bool has_attention() const { return softmax_layers_ > 0; }

 private:
  [[nodiscard]] std::shared_ptr<const Documents> documents(std::size_t kind);
  AttentionPricer& pricer(std::size_t kind, const Choice& choice);
  /// Of a rank's share of a layer of latent attention.
  [[nodiscard]] LatentRing latent_ring(const AttentionShape& shape, double rows) const;
  [[nodiscard]] i64 local_tokens(const Choice& choice) const;
  /// Tokens of the MLP at a time; 0: all.
  [[nodiscard]] i64 mlp_tile_of(const Choice& choice) const;

  /// One microbatch over all layers, on one of a stage's ranks.
  struct StageWork {
    LayerWork layers;
    HeadWork head;
    double moe_layers = 0;
  };
  /// A step that is being priced; the terms are added in order.
  struct StepContext {
    Workload workload;
    double per_stage = 1;  ///< microbatches over stages: times that a rank runs the sum over all layers
    double again = 1;      ///< share of the layers that compute again
    const StageWork& work;
    double forward_s = 0, backward_s = 0;  ///< compute so far, which transfers may hide behind
    double layer_s = 0, head_s = 0;
    /// Bytes of ZeRO between hosts that pass the PCIe link of a device, and what of them shows already.
    double nic_forward = 0, nic_backward = 0;
    double gathers_shown_s = 0;
  };
  [[nodiscard]] const StageWork& stage_work(const Choice& choice, const Workload& w) const;
  void add_time(PlanCandidate& c, const std::vector<LayerAttention>& attention) const;
  void add_attention(PlanCandidate& c, const std::vector<LayerAttention>& attention, StepContext& step) const;
  [[nodiscard]] double clocked(const PassPrice& pass, double older) const;
  void add_scores(PlanCandidate& c, double forward_s, StepContext& step) const;
  void add_dense(PlanCandidate& c, StepContext& step) const;
  void add_tensor(PlanCandidate& c, StepContext& step) const;
  void add_experts(PlanCandidate& c, StepContext& step) const;
  void add_pipeline(PlanCandidate& c, StepContext& step) const;
  /// Parameters of a rank before ZeRO shards them, and who shares them.
  struct StateShare {
    double dense = 0, experts = 0;
    double layers = 1;  ///< of the stage
    i64 ranks = 1;      ///< data x sequence ranks
    i64 holders = 1;    ///< ranks that hold the same experts
    i64 tensor = 1;
    bool by_layer = false;  ///< transfers of one layer at a time
  };
  [[nodiscard]] Estimate over_layers(Collective operation, double element, const StateShare& s) const;
  void add_states(PlanCandidate& c, StepContext& step) const;
  void add_reduction(PlanCandidate& c, const StateShare& s, const StepContext& step) const;
  void add_gathers(PlanCandidate& c, const StateShare& s, StepContext& step) const;
  void add_offload(PlanCandidate& c, StepContext& step) const;
  void add_memory(PlanCandidate& c, const AttentionMemory& memory, bool reasons) const;
  /// Groups of NCCL that a rank takes part in; transfers of copy engines need no buffers of their own.
  [[nodiscard]] std::vector<CommunicatorGroup> communicators(const Choice& choice, const Workload& w) const;
  [[nodiscard]] Estimate group_time(Collective operation, i64 ranks, i64 stride, double bytes) const;
  /// Dispatch or combine of `bytes` of tokens on each rank, `copies` of each, over expert ranks `stride`
  /// devices apart.
  [[nodiscard]] Estimate expert_time(i64 ranks, i64 stride, double bytes, double copies) const;
  /// Of `ranks` that are `stride` devices apart, those that fast links join.
  [[nodiscard]] i64 near_ranks(i64 ranks, i64 stride) const;
  /// Bytes of a device that cross the NICs of its host in a collective over `ranks`.
  [[nodiscard]] double crossing_bytes(i64 ranks, i64 stride, double bytes) const;
  [[nodiscard]] double attention_flops() const;

  const PlanRequest& request_;
  std::shared_ptr<LinkPricer> links_;
  ParameterCount parameters_;
  double device_bytes_ = 0;
  double host_bytes_ = 0;  ///< of a host; 0: not known
  LayerMachine machine_;
  double slower_clock_ = 1;             ///< of kernels under a power limit: times as long
  double flops_per_token_ = 0;          ///< of the model, MFU's
  double flops_per_token_outside_ = 0;  ///< of these, outside softmax attention
  double nic_bytes_s_ = 0;              ///< of one node, 0: none known
  double host_bytes_s_ = 0;             ///< of a host's memory, 0: not known
  int devices_per_node_ = 1;
  int domain_devices_ = 1;  ///< devices that fast links join
  i64 world_ = 0;
  i64 softmax_layers_ = 0;
  i64 priced_ = 0;
  /// By local tokens, tensor, expert, tile of the MLP.
  mutable std::map<std::tuple<i64, int, int, i64>, StageWork> works_;
  double earlier_tokens_ = 0;  ///< that a token of full attention sees, on average
  std::map<i64, std::shared_ptr<const Documents>> documents_;  ///< by chunk of a layer; 0: whole documents
  std::map<std::tuple<std::size_t, int, i64, bool>, std::unique_ptr<AttentionPricer>>
      pricers_;  ///< kind, tensor, rows, latent
};

/// plan_step with a pricer made for this request or for one that differs in `fixed` and `max_candidates`
/// only.
[[nodiscard]] PlanResult search_with(const PlanRequest& request, StepPricer& pricer);

/// Why the smallest plan does not fit, and what would.
[[nodiscard]] DoesNotFit does_not_fit(const PlanRequest& request, StepPricer& pricer,
                                      const PlanCandidate& smallest);

/// Whether the error of what differs between two candidates is greater than their distance in time per token.
[[nodiscard]] bool within_bands(const PlanCandidate& a, const PlanCandidate& b, double kernel_error);
/// Of the choices that a request fixes: what each costs against leaving it to the planner.
[[nodiscard]] std::vector<FlagCost> flag_costs(const PlanRequest& request, StepPricer& pricer,
                                               const PlanCandidate& best);
/// What the result assumes and a reader may not expect.
void add_notes(const PlanRequest& request, PlanResult& result);

/// Adds the fastest ring that ships latents after everything that the runtime can execute, with a note.
void add_latent(const PlanRequest& request, StepPricer& pricer, PlanResult& result);
/// The request of the rings that ship latents: the method that is priced so.
[[nodiscard]] PlanRequest ring_of_latents(const PlanRequest& request);

/// Names the guessed and borrowed inputs that decide between the candidates; each makes the result a tie.
void name_guesses(const PlanRequest& request, PlanResult& result);

/// Compares the best candidate with the best one on another mesh: margin, tie, measurements that break it,
/// sensitive terms.
/// @param kernel_error mean relative error of the attention fit
[[nodiscard]] Verdict compare_best(const topology::Cluster& cluster, const std::vector<PlanCandidate>& ranked,
                                   double kernel_error);

}  // namespace usp
