// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan.hpp"
#include "usp/schedule/plan_file.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp {

/// One attention call to lay out on a cluster. Pointers must outlive the result.
struct AttentionRequest {
  const topology::Cluster* cluster = nullptr;
  const Calibration* calibration = nullptr;
  AttentionShape shape;
  Documents documents;
  std::vector<i64> lengths;     ///< of the packed documents; empty: one
  std::vector<i64> kv_lengths;  ///< key tokens of each in packed cross attention; empty: as many as queries
  Band band{0, unbounded};
  bool sink = false, return_lse = false;  ///< as in AttentionPlan, like the four below
  /// Empty: of those whose kernels the calibration measured, the fastest that takes the call on these cards;
  /// where it measured none that does, the host's.
  std::optional<Backend> backend;
  ScoreRules score;
  std::vector<Range> replicated_q, replicated_k;
  bool training = true;  ///< price forward and backward; else forward only
  Constraints fixed;     ///< data and tensor are 1 where not given
  ExecutionOptions execution;
  std::size_t max_candidates = 32;
  WorkProgress* progress = nullptr;  ///< hears of the search, when given
  bool all_devices =
      false;  ///< the devices are the ranks of a launch: degrees that leave some idle are refused
};

struct AttentionCandidate {
  AttentionPlan plan;
  Placement placement;
  AttentionPrice price;
  bool uneven_heads = false;
  double live_bytes = 0;  ///< buffers of the fullest tick of either pass; of the kept candidates
  [[nodiscard]] double seconds() const { return price.seconds(); }
  [[nodiscard]] double band() const;  ///< of the sum of both passes
};

/// One backend that a call was priced with, or why it is not taken.
struct BackendPrice {
  Backend backend;
  double seconds = 0;  ///< of both passes of its best plan; of a forward-only call, of that
  double band = 0;
  std::string description;  ///< of that plan
  std::string objection;    ///< what it does not do; seconds are 0 where no plan was priced
  bool tie = false;         ///< as fast as the chosen one, within the bands of both
};

/// Attention steps of a plan by backend, over `ranks` of its ranks.
struct StepSample {
  int ranks = 0;
  std::optional<schedule::StepBackends> forward, backward;
};

struct AttentionResult {
  std::vector<AttentionCandidate> candidates;  ///< best sum of the passes first; at least one per mesh
  AttentionCandidate best_forward;             ///< of all, by that pass alone
  AttentionCandidate best_backward;            ///< the same as best_forward when forward only
  /// Where the request names no backend and the calibration several, or one that is not chosen: the chosen
  /// one where it was measured, the others by rising time, those that do not take the call.
  std::vector<BackendPrice> backends;
  /// Of the best, for a backend with a fallback, on few enough ranks to be counted; backward where training.
  std::optional<schedule::StepBackends> forward_steps, backward_steps;
  StepSample step_sample;  ///< the same; of some ranks, where all are too many
  std::vector<Rejection> rejected;
  double margin = 0;                                   ///< of the next mesh over the best one
  bool tie = false;                                    ///< the bands of what differs overlap
  std::vector<std::string> tie_breaking_measurements;  ///< commands; empty where there is no tie
  std::vector<GuessedInput> guesses;                   ///< unmeasured inputs that decide: each makes a tie
  std::vector<AttentionCandidate> smaller;             ///< best of one device and of fewer than all, rising
  std::vector<std::string> notes;
  CalibrationSummary calibration;
  i64 considered = 0;
  [[nodiscard]] const AttentionCandidate& best() const { return candidates.front(); }
};

/// What is said of a call with a block pattern: which blocks it skips comes with the run.
[[nodiscard]] std::string block_pattern_note(const ScoreRules& score);
/// What the gates of a plan gain or cost beside the same layout without them, of which both times are.
[[nodiscard]] std::string gates_note(double gated_s, double ungated_s);
/// What is said of a gated plan whose forward pass stalls for a time that its price cannot tell; empty: it
/// can. @param computes forward
[[nodiscard]] std::string stall_note(const Calibration& calibration, Backend computes);

/// What is said of a price that is of other devices than those that execute the plan; empty where they are
/// the same. `all_devices` means threads of a host.
[[nodiscard]] std::string priced_devices_note(const AttentionRequest& request);

/// Exhaustive, for each backend: every mesh of the cluster's devices (of the first ones, where ring and
/// ulysses are fixed to fewer: the result notes it) x method x layout x dKV return x head chunks x axis
/// order. Throws Infeasible with remedies when no mesh is legal, naming the nearest degrees that are, and
/// where the cluster's cards do not run the backend that is asked for.
[[nodiscard]] AttentionResult plan_attention(const AttentionRequest& request);

/// The recipe of a candidate.
[[nodiscard]] PlanFile make_plan_file(const AttentionRequest& request, const AttentionCandidate& candidate);

/// One line: "ring 3 x ulysses 2, zigzag, ring_direct, ...".
[[nodiscard]] std::string describe(const AttentionCandidate& candidate);

/// N threads of one host, each a device of its own behind one bus. Every number in it is a guess, named so:
/// it serves to write a plan for a run on threads, not to predict its time.
[[nodiscard]] topology::Cluster thread_cluster(int ranks);

}  // namespace usp
