// SPDX-License-Identifier: Apache-2.0
#include "variant.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/compose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace usp {
namespace {

constexpr std::size_t max_machines = 512;  ///< a bisection leaves many behind

bool of_machine(AxisKind kind) {
  return kind == AxisKind::nic || kind == AxisKind::nvlink || kind == AxisKind::nodes ||
         kind == AxisKind::gpus;
}

topology::Cluster first_devices(const topology::Cluster& cluster, int count) {
  std::vector<int> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return topology::select_devices(cluster, ids);
}

/// `count` devices: the first ones, or more copies of the first host (of a cluster of one NVLink domain over
/// several hosts: of the whole cluster).
topology::Cluster resized(const topology::Cluster& cluster, i64 count, const char* what) {
  const auto have = static_cast<i64>(cluster.devices.size());
  if (count < 1 || count > 65536) throw UsageError(fmt::format("--sweep: {} out of range", what));
  if (count <= have) return count == have ? cluster : first_devices(cluster, static_cast<int>(count));
  const i64 per_node = have / std::max<i64>(1, static_cast<i64>(cluster.nodes.size()));
  const bool spans = std::any_of(
      cluster.domains.begin(), cluster.domains.end(),
      [&](const topology::NvlinkDomain& d) { return static_cast<i64>(d.devices.size()) > per_node; });
  const i64 unit = spans ? have : per_node;
  if (unit == 0 || count % unit != 0)
    throw UsageError(fmt::format("--sweep: {} {} are no whole number of copies of {} devices", what,
                                 counted(count, "device"), unit));
  const topology::Cluster one = unit == have ? cluster : first_devices(cluster, static_cast<int>(unit));
  return topology::replicate(one, static_cast<int>(count / unit));
}

topology::Quantity assumed(double value) {
  return {value, topology::Provenance::guess, "what-if"};
}

void set_nics(topology::Cluster& cluster, double gb_s) {
  if (cluster.nics.empty())
    throw UsageError("--sweep nic: the cluster has no NICs; give them with --nic, e.g. --nic 8x400G");
  for (topology::Nic& nic : cluster.nics) nic.gb_s = assumed(gb_s);
}

/// Returns new over old bandwidth.
double set_nvlink(topology::Cluster& cluster, double gb_s) {
  double ratio = 0;
  for (topology::NvlinkDomain& domain : cluster.domains) {
    if (domain.gb_s.known()) ratio = std::max(ratio, gb_s / *domain.gb_s.value);
    domain.gb_s = assumed(gb_s);
  }
  if (ratio <= 0)
    throw UsageError(
        "--sweep nvlink: the cluster has no NVLink domain of known bandwidth; give it with --nvlink");
  for (topology::Link& link : cluster.links)
    if ((link.kind == topology::LinkKind::nvlink || link.kind == topology::LinkKind::xgmi ||
         link.kind == topology::LinkKind::c2c) &&
        link.gb_s.known())
      link.gb_s = assumed(*link.gb_s.value * ratio);
  return ratio;
}

void set_seq(Workload& workload, double tokens) {
  if (!workload.documents.empty())
    throw UsageError("--sweep seq: the packed documents fix the sequence length; leave --documents out");
  workload.seq = static_cast<i64>(tokens);
}

void apply(PlanRequest& request, AxisKind kind, double number) {
  const auto whole = [&] { return static_cast<int>(number); };
  switch (kind) {
    case AxisKind::seq:
      set_seq(request.workload, number);
      break;
    case AxisKind::batch:
      request.workload.batch = static_cast<i64>(number);
      break;
    case AxisKind::memory:
      request.memory.device_bytes = number;
      break;
    case AxisKind::ring:
      request.fixed.ring = whole();
      break;
    case AxisKind::ulysses:
      request.fixed.ulysses = whole();
      break;
    case AxisKind::tensor:
      request.fixed.tensor = whole();
      break;
    case AxisKind::zero:
      request.fixed.zero_stage = whole();
      break;
    case AxisKind::layout:
      request.fixed.layout = static_cast<LayoutKind>(whole());
      break;
    case AxisKind::method:
      request.fixed.method = methods()[static_cast<std::size_t>(whole())];
      break;
    case AxisKind::recompute:
      request.fixed.recompute = static_cast<Recompute>(whole());
      break;
    default:  // of the machine and the model
      break;
  }
}

}  // namespace

const Variants::Machine& Variants::machine(const std::vector<Axis>& axes,
                                           const std::vector<AxisValue>& values) {
  std::vector<double> key;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (of_machine(axes[i].kind)) {
      key.push_back(static_cast<double>(axes[i].kind));
      key.push_back(values[i].number);
    }
  const auto known = machines_.find(key);
  if (known != machines_.end()) return known->second;
  if (machines_.size() >= max_machines) machines_.clear();
  const auto unchanged = [](const auto* pointer) {  // the caller's object; not owned
    return std::shared_ptr<std::remove_pointer_t<decltype(pointer)>>(pointer, [](const auto*) {});
  };
  Machine made{unchanged(base_.cluster), unchanged(base_.calibration), nullptr};
  if (!key.empty()) {
    auto cluster = std::make_shared<topology::Cluster>(*base_.cluster);
    const double per_node = static_cast<double>(cluster->devices.size()) /
                            static_cast<double>(std::max<std::size_t>(1, cluster->nodes.size()));
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].kind == AxisKind::nodes)
        *cluster = resized(*cluster, static_cast<i64>(values[i].number * per_node), "nodes:");
      if (axes[i].kind == AxisKind::gpus)
        *cluster = resized(*cluster, static_cast<i64>(values[i].number), "gpus:");
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].kind == AxisKind::nic) set_nics(*cluster, values[i].number);
      if (axes[i].kind != AxisKind::nvlink) continue;
      const double ratio = set_nvlink(*cluster, values[i].number);
      auto calibration = std::make_shared<Calibration>(*base_.calibration);
      calibration->comm = calibration->comm.on_faster_links(ratio);
      made.calibration = std::move(calibration);
    }
    made.cluster = std::move(cluster);
  }
  made.links = std::make_shared<LinkPricer>(*made.cluster, *made.calibration);
  return machines_.emplace(std::move(key), std::move(made)).first->second;
}

std::shared_ptr<const Model> Variants::model(const std::vector<Axis>& axes,
                                             const std::vector<AxisValue>& values) const {
  std::shared_ptr<Model> changed;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const AxisKind kind = axes[i].kind;
    if (kind != AxisKind::heads && kind != AxisKind::kv_heads) continue;
    if (!changed) changed = std::make_shared<Model>(*base_.model);
    for (LayerKind& layer : changed->kinds) {
      if (!layer.has_softmax()) continue;
      (kind == AxisKind::heads ? layer.query_heads : layer.kv_heads) = static_cast<i64>(values[i].number);
    }
  }
  for (std::size_t k = 0; changed && k < changed->kinds.size(); ++k) {
    const LayerKind& layer = changed->kinds[k];
    if (layer.has_softmax() && layer.query_heads % layer.kv_heads != 0)
      throw UsageError(
          fmt::format("--sweep: kv_heads {} does not divide heads {}", layer.kv_heads, layer.query_heads));
  }
  return changed;
}

Variant Variants::at(const std::vector<Axis>& axes, const std::vector<AxisValue>& values) {
  expects(axes.size() == values.size(), "one value per axis");
  Variant variant;
  variant.request = base_;
  const Machine& on = machine(axes, values);
  variant.cluster = on.cluster;
  variant.calibration = on.calibration;
  variant.links = on.links;
  variant.model = model(axes, values);
  for (std::size_t i = 0; i < axes.size(); ++i) apply(variant.request, axes[i].kind, values[i].number);
  variant.request.cluster = variant.cluster.get();
  variant.request.calibration = variant.calibration.get();
  if (variant.model) variant.request.model = variant.model.get();
  return variant;
}

}  // namespace usp
