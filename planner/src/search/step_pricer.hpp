// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <map>
#include <memory>
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
  /// Seconds of a step's attention with the recomputation that `recompute` asks for, per microbatch.
  [[nodiscard]] double attention_seconds(const std::vector<LayerAttention>& attention,
                                         Recompute recompute) const;

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
  [[nodiscard]] PlanCandidate candidate(const Choice& choice, const std::vector<LayerAttention>& attention,
                                        const AttentionMemory& memory) const;

  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] double device_bytes() const { return device_bytes_; }
  [[nodiscard]] int devices_per_node() const { return devices_per_node_; }
  [[nodiscard]] i64 world() const { return world_; }
  [[nodiscard]] i64 priced() const { return priced_; }
  [[nodiscard]] bool has_attention() const { return softmax_layers_ > 0; }

 private:
  [[nodiscard]] std::shared_ptr<const Documents> documents(std::size_t kind);
  AttentionPricer& pricer(std::size_t kind, int tensor);
  [[nodiscard]] i64 local_tokens(const Choice& choice) const;
  void add_time(PlanCandidate& c, const std::vector<LayerAttention>& attention) const;
  void add_dense(PlanCandidate& c, double& compute_s) const;
  void add_tensor(PlanCandidate& c) const;
  void add_states(PlanCandidate& c, double compute_s) const;
  void add_offload(PlanCandidate& c, double compute_s) const;
  void add_memory(PlanCandidate& c, const AttentionMemory& memory) const;
  [[nodiscard]] Estimate group_time(Collective operation, i64 ranks, i64 stride, double bytes) const;

  const PlanRequest& request_;
  Workload undocumented_;  ///< request_.workload without its list of documents: candidates copy it
  std::shared_ptr<LinkPricer> links_;
  ParameterCount parameters_;
  double device_bytes_ = 0;
  double peak_flops_ = 0;
  double memory_bytes_s_ = 0;
  double nic_bytes_s_ = 0;  ///< of one node, 0: none known
  int devices_per_node_ = 1;
  int domain_devices_ = 1;  ///< devices that fast links join
  i64 world_ = 0;
  i64 softmax_layers_ = 0;
  i64 priced_ = 0;
  std::map<i64, std::shared_ptr<const Documents>> documents_;  ///< by chunk of a layer; 0: whole documents
  std::map<std::pair<std::size_t, int>, std::unique_ptr<AttentionPricer>> pricers_;
};

/// plan_step with a pricer made for this request or for one that differs in `fixed` and `max_candidates`
/// only.
[[nodiscard]] PlanResult search_with(const PlanRequest& request, StepPricer& pricer);

/// Whether the error of what differs between two candidates is greater than their distance in time per token.
[[nodiscard]] bool within_bands(const PlanCandidate& a, const PlanCandidate& b, double kernel_error);

/// Compares the best candidate with the best one on another mesh: margin, tie, measurements that break it,
/// sensitive terms.
/// @param kernel_error mean relative error of the attention fit
[[nodiscard]] Verdict compare_best(const std::vector<PlanCandidate>& ranked, double kernel_error);

}  // namespace usp
