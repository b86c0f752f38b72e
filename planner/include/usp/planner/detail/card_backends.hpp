// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp {

/// Backends on the cards of a cluster: which run there, which take a call, and which computes it. Refers to
/// cluster and calibration.
class CardBackends {
 public:
  CardBackends(const topology::Cluster& cluster, const Calibration& calibration)
      : cluster_(cluster), calibration_(calibration) {}

  /// Whether the cards run what computes both passes: by their generation, or because the calibration
  /// measured it on this very cluster. A backend of the host runs everywhere.
  [[nodiscard]] bool run(Backend backend) const { return refusing(backend) == nullptr; }
  /// Why they do not ("it is for hopper cards, and a100-sxm is ampere"); empty: they do.
  [[nodiscard]] std::string refusal(Backend backend) const;
  /// Throws Infeasible where the cards are of generations that do not run the backend of a call, naming those
  /// that take it there. Ranks on the cores of hosts take any: they run none of GPUs' and are priced alone.
  void check_runs(const AttentionPlan& call, bool training) const;
  /// That it is not known whether the cards run a backend; empty: it is.
  [[nodiscard]] std::string unknown_note(Backend backend) const;
  /// That the price of a call is of other devices than those that execute it; empty: of the same.
  /// @param of_host the devices are threads of a host
  [[nodiscard]] std::string priced_devices_note(const AttentionPlan& call, bool training, bool of_host) const;
  /// The refusal of a plan's backend, or what it takes of no call of its passes; empty: nothing of the kind.
  [[nodiscard]] std::string objection(const AttentionPlan& plan, bool training) const;
  /// Each backend of GPUs with its objection to a plan; empty: some has none.
  [[nodiscard]] std::string all_objections(AttentionPlan plan, bool training) const;
  /// Backends of GPUs that run here and take all calls of a plan: "mma or cudnn".
  [[nodiscard]] std::string taking_words(AttentionPlan plan, bool training) const;

  /// What computes a pass of a plan, by what all calls with these query heads share: the part of its backend,
  /// or the first of the fallbacks that runs here and takes them. Where the cards run none of them, as if
  /// they did.
  [[nodiscard]] Backend computing(const AttentionPlan& plan, Pass pass, Range query_heads) const;
  /// Those that the calibration measured, the one that it prices with first.
  [[nodiscard]] std::vector<Backend> measured() const;
  /// What computes the layers of a step: of the backends of GPUs that run here and take a pass of the plan,
  /// the most preferred that was measured, or else the one that the calibration prices with, or else the most
  /// preferred of several generations, or its fallback; the host's where there is none.
  [[nodiscard]] Backend of_layer(AttentionPlan plan, bool training) const;

 private:
  /// The first card that does not run a backend; null: all do.
  [[nodiscard]] const topology::DeviceSpec* refusing(Backend backend) const;

  const topology::Cluster& cluster_;
  const Calibration& calibration_;
};

/// That a pass of a plan is computed by a backend whose kernels a calibration that names backends did not
/// measure, and by whose it is priced; empty: nothing of the kind.
[[nodiscard]] std::string unmeasured_kernels_note(const Calibration& calibration, const AttentionPlan& plan,
                                                  const std::vector<Backend>& computing);

/// That softcap, ALiBi or dropout is not in the price: kernels are measured without, and every score costs
/// more; empty: the plan has none, or no GPU computes it.
[[nodiscard]] std::string scores_note(const Calibration& calibration, const AttentionPlan& plan,
                                      Backend computes);

}  // namespace usp
