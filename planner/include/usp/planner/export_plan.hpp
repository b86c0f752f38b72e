// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/framework.hpp"
#include "usp/planner/step_input.hpp"

#include <optional>
#include <string>
#include <vector>

/// `usp export`: a plan in the settings of a framework, and what of it the framework cannot do.
namespace usp {

/// A mode on a mesh, and what its attention takes.
struct PricedMode {
  const ExchangeMode* mode = nullptr;
  int ring = 1, ulysses = 1;
  AxisOrder order = AxisOrder::ulysses_inner;
  std::optional<double>
      attention_s;  ///< of one step (of one call: both passes); empty: no cluster to price on
  double band = 0;  ///< relative half width
  std::uint32_t extrapolation = 0;
};

struct ExportRequest {
  const PlanFile* plan = nullptr;
  const FrameworkTraits* framework = nullptr;
  const topology::Cluster* cluster = nullptr;  ///< empty: no prices, and hosts are variables of launch lines
  const Calibration* calibration = nullptr;    ///< of the cluster
  std::string script;                          ///< that launch lines start; empty: the framework's
  std::string plan_file = "plan.json";         ///< where code that is exported finds the plan
};

/// What a record's `write` and `start` read.
struct ExportInput {
  const ExportRequest& request;
  const PlanFile& plan;
  PricedMode chosen;                    ///< `mode` is empty where the sequence has one rank, and for any_plan
  int hosts = 0, devices_per_host = 0;  ///< 0: not known
  std::string script;

  [[nodiscard]] int sequence_ranks() const { return chosen.ring * chosen.ulysses; }
  [[nodiscard]] int data() const { return plan.placement.data; }
  [[nodiscard]] int tensor() const { return plan.placement.tensor; }
  [[nodiscard]] i64 world() const;
  [[nodiscard]] i64 model_layers() const;   ///< 0: not known to a plan written before it stated them
  [[nodiscard]] StepWorkload step() const;  ///< defaults for one attention call
  [[nodiscard]] i64 rows_per_microbatch() const { return step().batch / step().microbatches; }
};

/// A setting and its value: an argument, a key, an environment variable.
struct Setting {
  std::string name;
  std::string value;   ///< empty: a switch
  std::string reason;  ///< of environment variables
};
/// A file or a piece of code to paste.
struct ExportedText {
  std::string title;
  std::string text;
};
/// What of the plan has no counterpart.
struct Difference {
  std::string plan;       ///< what the plan has
  std::string framework;  ///< what happens instead
};
struct LaunchLine {
  std::string launcher;  ///< "torchrun", "srun", "mpirun"
  std::string text;
};

struct ExportedPlan {
  const FrameworkTraits* framework = nullptr;
  PricedMode chosen;
  bool same_exchange = false;  ///< mesh, method and order are the plan's
  std::vector<Setting> arguments;
  std::vector<Setting> environment;
  std::vector<ExportedText> texts;
  std::vector<LaunchLine> launch;
  std::string rank_order;  ///< axes, fastest first
  std::vector<Difference> differences;
  std::vector<PricedMode> modes;        ///< all that are possible on as many ranks, fastest first
  std::vector<std::string> impossible;  ///< modes that are not, with reasons
  double plan_attention_s = 0;          ///< of one step, as the plan predicts it
  std::vector<std::string> notes;
};

/// Throws Infeasible where the framework can take the plan in no mode on as many ranks.
[[nodiscard]] ExportedPlan export_plan(const ExportRequest& request);

/// The cluster that a plan was made for, where a shipped preset of as many devices has the plan's digest.
[[nodiscard]] std::optional<topology::Cluster> cluster_of_plan(const PlanFile& plan);

[[nodiscard]] std::string export_text(const ExportRequest& request, const ExportedPlan& result);
/// One JSON object (schema: configs/schema/export.v2.schema.json).
[[nodiscard]] std::string export_json(const ExportRequest& request, const ExportedPlan& result);

}  // namespace usp
