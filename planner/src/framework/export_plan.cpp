// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/export_plan.hpp"

#include "records.hpp"

#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/shell.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Calls of one kind of layer that a rank makes in a pass of a step, all microbatches.
double layer_runs(const PlanFile& plan, const PlanLayer& layer) {
  const i64 microbatches = plan.inputs.step ? plan.inputs.step->microbatches : 1;
  return static_cast<double>(layer.calls()) * static_cast<double>(microbatches) / plan.pipeline;
}

/// The word inside a command that bash -c takes in double quotes: they end for it and begin anew.
std::string inner_shell_word(const std::string& text) {
  const std::string word = shell_word(text);
  return word == text ? word : "\"" + shell_word(word) + "\"";
}

class Exporter {
 public:
  explicit Exporter(const ExportRequest& request)
      : request_(request), plan_(*request.plan), framework_(*request.framework), job_(framework_case(plan_)) {
    if (request.cluster != nullptr) links_.emplace(*request.cluster, *request.calibration);
  }

  ExportedPlan run() {
    result_.framework = request_.framework;
    result_.plan_attention_s = predicted();
    ExportInput input{request_, plan_, {}, 0, 0, ""};
    input.script = request_.script.empty() ? std::string(framework_.script) : request_.script;
    find_hosts(input);
    choose();
    compare();
    input.chosen = result_.chosen;
    framework_.write(input, result_);
    note_linear_layers();
    add_launch(input);
    return std::move(result_);
  }

 private:
  [[nodiscard]] double predicted() const {
    double seconds = 0;
    for (const PlanLayer& layer : plan_.layers)
      seconds +=
          layer_runs(plan_, layer) *
          (forward_runs(plan_.training, plan_.recompute, recomputed_share(plan_)) * layer.forward.seconds +
           layer.backward.seconds);
    return seconds;
  }

  void choose() {
    const int ranks = plan_.mesh.size();
    result_.chosen.ring = plan_.mesh.ring();
    result_.chosen.ulysses = plan_.mesh.ulysses;
    result_.chosen.order = plan_.placement.order;
    if (const std::string reason = unsupported_job(framework_, job_); !reason.empty())
      throw Infeasible(reason, {"another --to"});
    if (const DType dtype = plan_.layers.front().plan.shape.dtype;
        !framework_.any_plan && !plan_.inputs.step && !precision_of(dtype))
      throw Infeasible(
          fmt::format("{} has no setting for attention in {}", framework_.name, word_of(dtype)),
          {"plan with --dtype fp32, bf16 or fp16", "--to usp-attention, which computes any plan"});
    result_.same_exchange = true;
    if (framework_.any_plan || ranks == 1) return;
    for (const ExchangeMode& mode : framework_.modes) add_mode(mode);
    if (result_.modes.empty())
      throw Infeasible(fmt::format("{} exchanges attention over {} in no way: {}", framework_.name,
                                   counted(ranks, "rank"), fmt::join(result_.impossible, "; ")),
                       {fmt::format("plan --framework {}, which keeps to what it can do", framework_.word)});
    std::stable_sort(result_.modes.begin(), result_.modes.end(),
                     [](const PricedMode& a, const PricedMode& b) {
                       return a.attention_s.value_or(0) < b.attention_s.value_or(0);
                     });
    const auto same = std::find_if(result_.modes.begin(), result_.modes.end(),
                                   [&](const PricedMode& mode) { return is_plans(mode); });
    result_.same_exchange = same != result_.modes.end();
    result_.chosen = result_.same_exchange ? *same : nearest();
  }

  /// The fastest where they are priced; else the one whose mesh is nearest to the plan's.
  [[nodiscard]] PricedMode nearest() const {
    if (result_.modes.front().attention_s) return result_.modes.front();
    const auto distance = [&](const PricedMode& m) {
      return std::max(m.ulysses, plan_.mesh.ulysses) / std::min(m.ulysses, plan_.mesh.ulysses);
    };
    return *std::min_element(
        result_.modes.begin(), result_.modes.end(),
        [&](const PricedMode& a, const PricedMode& b) { return distance(a) < distance(b); });
  }

  /// Every mesh of as many ranks that the mode can have.
  void add_mode(const ExchangeMode& mode) {
    const int ranks = plan_.mesh.size();
    std::string reason, of_plan;  // the reason of the plan's own mesh says more
    bool possible = false;
    for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
      if (ranks % ulysses != 0) continue;
      const std::string why = unsupported_mode(framework_, mode, job_, ranks / ulysses, ulysses);
      if (!why.empty() && (mode.ulysses || ulysses == 1)) reason = why;
      if (ulysses == plan_.mesh.ulysses && (mode.ulysses || ulysses == 1)) of_plan = why;
      if (!why.empty()) continue;
      possible = true;
      for (const AxisOrder order : orders(mode, ranks / ulysses, ulysses))
        result_.modes.push_back(priced({&mode, ranks / ulysses, ulysses, order, std::nullopt, 0, 0}));
    }
    if (!possible)
      result_.impossible.push_back(fmt::format("{}: {}", mode.word, of_plan.empty() ? reason : of_plan));
  }

  static std::vector<AxisOrder> orders(const ExchangeMode& mode, int ring, int ulysses) {
    if (mode.order) return {*mode.order};
    if (ring == 1 || ulysses == 1) return {AxisOrder::ulysses_inner};
    return {AxisOrder::ulysses_inner, AxisOrder::ring_inner};
  }

  [[nodiscard]] bool is_plans(const PricedMode& m) const {
    const bool both = m.ring > 1 && m.ulysses > 1;
    const AttentionPlan& plan = plan_.layers.front().plan;
    return m.ring == plan_.mesh.ring() && m.ulysses == plan_.mesh.ulysses &&
           (m.ring == 1 || m.mode->method == plan.method) && (!both || m.order == plan_.placement.order);
  }

  PricedMode priced(PricedMode m) {
    if (!links_) return m;
    Placement placement = plan_.placement;
    placement.order = m.order;
    double seconds = 0, weighted = 0;
    const bool some = framework_.some_layers && layer_again(plan_.recompute);
    const double share = some ? recomputed_share(plan_) : 1;
    for (const PlanLayer& layer : plan_.layers) {
      const AttentionPlan plan = mode_plan(*m.mode, layer.plan, m.ring, m.ulysses);
      AttentionPricer pricer(*links_, plan.shape, layer_documents(layer, plan_.documents, plan_.kv_documents),
                             mode_execution(*m.mode));
      if (!pricer.too_much_work(plan, placement).empty()) return m;
      const AttentionPrice price = pricer.price(plan, placement);
      const double forward = layer_runs(plan_, layer) * forward_runs(plan_.training, plan_.recompute, share) *
                             price.forward.seconds;
      const double backward = plan_.training ? layer_runs(plan_, layer) * price.backward.seconds : 0;
      seconds += forward + backward;
      weighted += forward * price.forward.band + backward * price.backward.band;
      m.extrapolation |= price.forward.extrapolation | price.backward.extrapolation;
    }
    m.attention_s = seconds;
    m.band = seconds > 0 ? weighted / seconds : 0;
    return m;
  }

  /// What of the plan's attention the chosen mode does otherwise.
  void compare() {
    const PricedMode& m = result_.chosen;
    if (m.mode == nullptr) return;
    const AttentionPlan& plan = plan_.layers.front().plan;
    const Mesh& mesh = plan_.mesh;
    if (m.ring != mesh.ring() || m.ulysses != mesh.ulysses)
      differs(result_, fmt::format("ring {} x ulysses {}", mesh.ring(), mesh.ulysses),
              fmt::format("{}: ring {} x ulysses {}", m.mode->word, m.ring, m.ulysses));
    else if (m.ring > 1 && m.ulysses > 1 && m.order != plan_.placement.order)
      differs(result_, fmt::format("{} axis on neighbouring devices", word_of(plan_.placement.order)),
              std::string(word_of(m.order)));
    if (mesh.ring() > 1 && m.ring > 1) compare_rings(plan, m);
    compare_heads(plan, m);
    compare_execution(plan, m);
  }

  void compare_rings(const AttentionPlan& plan, const PricedMode& m) {
    const AttentionPlan here = mode_plan(*m.mode, plan, m.ring, m.ulysses);
    if (here.method != plan.method)
      differs(result_, fmt::format("method {}", word_of(plan.method)), std::string(word_of(here.method)));
    if (here.layout != plan.layout)
      differs(result_, fmt::format("layout {}", word_of(plan.layout)), std::string(word_of(here.layout)));
    if (plan_.training && plan.dkv_return != here.dkv_return && plan.method->partials_travel)
      differs(result_, fmt::format("dK/dV return {}", word_of(plan.dkv_return)),
              std::string(word_of(here.dkv_return)));
    if (plan.gated)
      differs(result_, "remote keys are attended in the call of the own ones, as they land",
              "calls wait for the keys that they attend");
    if (plan.prune) differs(result_, "only key rows that some mask sees are sent", "all are sent");
  }

  void compare_heads(const AttentionPlan& plan, const PricedMode& m) {
    if (plan.head_chunks > 1)
      differs(result_, fmt::format("{} head chunks, exchanged beside attention", plan.head_chunks),
              "one exchange before attention and one after it");
    if (m.mode->repeats_kv && m.ulysses > plan.shape.kv_heads)
      differs(result_, "each rank receives the KV heads it needs",
              fmt::format("KV heads are repeated {} before the exchange",
                          counted(m.ulysses / plan.shape.kv_heads, "time")));
  }

  void compare_execution(const AttentionPlan& plan, const PricedMode& m) {
    const bool copies = plan_.ulysses_transport == Transport::copy_engine ||
                        (plan_.mesh.ring() > 1 && plan_.ring_transport == Transport::copy_engine);
    if (copies)
      differs(result_, "copy engines move the data inside hosts",
              "NCCL's kernels do, which take SMs from attention");
    if (plan_.inputs.execution.packed && !m.mode->packed && m.ulysses > 1)
      differs(result_, "q, k and v in one exchange", "one exchange each");
    if (plan_.overlap && !m.mode->overlap && m.ring > 1)
      differs(result_, "exchange beside attention", "keys and values are gathered before attention starts");
    if (plan_.training && m.ring > 1 && plan.shape.dtype != DType::fp32)
      result_.notes.push_back(fmt::format(
          "priced with partial dK and dV in fp32, as this project sends them; {} may round them to {}",
          framework_.word, word_of(plan.shape.dtype)));
  }

  /// A plan file holds softmax layers alone; a shipped model of the same digest says whether there are
  /// others.
  void note_linear_layers() {
    const std::vector<std::string> presets = preset_names("models");
    if (framework_.any_plan || std::find(presets.begin(), presets.end(), plan_.model) == presets.end())
      return;
    const Model model = read_model_config(shipped_preset("models", plan_.model).text, plan_.model);
    const bool linear = std::any_of(model.kinds.begin(), model.kinds.end(),
                                    [](const LayerKind& kind) { return kind.is_linear(); });
    if (linear && model_digest(model) == plan_.model_digest)
      result_.notes.push_back(
          fmt::format("{} has layers of linear attention: how {} divides those is not in its record "
                      "here",
                      plan_.model, framework_.word));
  }

  void find_hosts(ExportInput& input) const {
    if (request_.cluster == nullptr) return;
    const auto hosts = static_cast<i64>(request_.cluster->nodes.size());
    const auto devices = static_cast<i64>(request_.cluster->devices.size());
    if (devices < input.world())
      throw UsageError(fmt::format("the plan has {}, --cluster has {}; give the plan's cluster",
                                   counted(input.world(), "rank"), counted(devices, "device")));
    if (hosts == 0 || devices % hosts != 0) return;
    const i64 per_host = std::min(devices / hosts, input.world());
    if (input.world() % per_host != 0) return;
    input.devices_per_host = static_cast<int>(per_host);
    input.hosts = static_cast<int>(input.world() / per_host);
  }

  void add_launch(const ExportInput& input) {
    const auto start = [&](const std::string& node_rank) {
      return framework_.start != nullptr ? framework_.start(input, node_rank)
                                         : torchrun_start(input, node_rank);
    };
    const auto with = [&](const std::string& word, const std::string& arguments) -> std::string {
      const std::string script = input.script.empty() ? "" : " " + word;
      if (result_.arguments.empty()) return std::string(script);
      return framework_.launcher_arguments ? arguments + script : script + arguments;
    };
    const std::string array = with(shell_word(input.script), " \"${ARGS[@]}\"");
    const std::string joined = with(inner_shell_word(input.script), " ${ARGS[*]}");
    result_.rank_order = framework_.any_plan ? "as the plan's" : "tensor, sequence, data, pipeline";
    result_.launch.push_back(
        {input.hosts == 1 ? "on the host" : "on every host", start("$NODE_RANK") + array});
    if (input.hosts == 1) return;
    result_.launch.push_back(
        {"srun", fmt::format("srun --nodes {} --ntasks-per-node 1 --gpus-per-node {} bash -c \"{}{}\"",
                             hosts_word(input), devices_word(input), start("\\$SLURM_NODEID"), joined)});
    std::string variables = " -x MASTER_ADDR";
    for (const Setting& variable : result_.environment) variables += " -x " + variable.name;
    result_.launch.push_back(
        {"mpirun (Open MPI)",
         fmt::format("mpirun -np {} --map-by ppr:1:node{} bash -c \"{}{}\"", hosts_word(input), variables,
                     start("\\$OMPI_COMM_WORLD_RANK"), joined)});
  }

  const ExportRequest& request_;
  const PlanFile& plan_;
  const FrameworkTraits& framework_;
  FrameworkCase job_;
  std::optional<LinkPricer> links_;
  ExportedPlan result_;
};

}  // namespace

ExportedPlan export_plan(const ExportRequest& request) {
  return Exporter(request).run();
}

std::optional<topology::Cluster> cluster_of_plan(const PlanFile& plan) {
  const i64 world = i64{plan.placement.data} * plan.placement.tensor * plan.pipeline * plan.mesh.size();
  for (const std::string& name : preset_names("clusters")) {
    topology::ClusterRequest request;
    request.source = name;
    request.text = shipped_preset("clusters", name).text;
    topology::Cluster cluster = topology::compose(request);
    if (cluster.name != plan.cluster) continue;
    const auto devices = static_cast<i64>(cluster.devices.size());
    if (world > devices) {
      request.nodes = static_cast<int>((world + devices - 1) / devices);
      cluster = topology::compose(request);
    }
    if (cluster_digest(cluster) == plan.cluster_digest) return cluster;
  }
  return std::nullopt;
}

}  // namespace usp
