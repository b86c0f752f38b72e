// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../search/step_pricer.hpp"

#include "usp/planner/whatif.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace usp {

/// A request with some values changed, and the changed machine and model that it points at.
struct Variant {
  PlanRequest request;
  std::shared_ptr<const topology::Cluster> cluster;
  std::shared_ptr<const Calibration> calibration;
  std::shared_ptr<const Model> model;
  std::shared_ptr<LinkPricer> links;  ///< of this cluster and calibration
};

/// Makes variants of one request; machines and their link patterns are kept for the next variant that needs
/// them.
class Variants {
 public:
  explicit Variants(const PlanRequest& base) : base_(base) {}
  /// One value per axis. Throws UsageError for what the request cannot vary.
  [[nodiscard]] Variant at(const std::vector<Axis>& axes, const std::vector<AxisValue>& values);
  [[nodiscard]] const PlanRequest& base() const { return base_; }

 private:
  struct Machine {
    std::shared_ptr<const topology::Cluster> cluster;
    std::shared_ptr<const Calibration> calibration;
    std::shared_ptr<LinkPricer> links;
  };
  const Machine& machine(const std::vector<Axis>& axes, const std::vector<AxisValue>& values);
  [[nodiscard]] std::shared_ptr<const Model> model(const std::vector<Axis>& axes,
                                                   const std::vector<AxisValue>& values) const;

  const PlanRequest& base_;
  std::map<std::vector<double>, Machine> machines_;
};

/// Plans a variant by a whole search; infeasible points say why.
[[nodiscard]] PointPlan search_point(const Variant& variant);
/// Prices these layouts only; infeasible when none fits.
/// @param memory_settled recompute and ZeRO stage stay as the rivals have them; else they are chosen again
[[nodiscard]] PointPlan price_rivals(const Variant& variant, const std::vector<Choice>& rivals,
                                     bool memory_settled = false);
/// What leads at a point, beside what led at the one before it.
struct Lead {
  PointPlan plan;        ///< the layout that led before, where it ties with the best plan here; else that one
  bool changed = false;  ///< another layout leads by more than the bands, or feasibility changes
  bool memory_changed = false;  ///< the same layout with another recompute mode or ZeRO stage
};
/// @param price_before prices the layout that led before at this point; called where another one is best
[[nodiscard]] Lead follow(const PointPlan& before, const PointPlan& best,
                          const std::function<PointPlan()>& price_before, double kernel_error);

/// Adds the layouts of `more` that `list` lacks.
void merge_rivals(std::vector<Choice>& list, const std::vector<Choice>& more);

/// Fills the break-evens and the longest sequence of a result whose base is planned.
void find_break_evens(const WhatIfRequest& request, Variants& variants, WhatIfResult& result,
                      ProgressRelay& relay);

}  // namespace usp
