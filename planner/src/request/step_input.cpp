// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/step_input.hpp"

#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/model_config.hpp"

#include <algorithm>

namespace usp {

topology::Cluster load_cluster(const topology::ClusterRequest& request, const NoteSink& note) {
  topology::Cluster cluster = topology::compose(request);
  for (const std::string& text : cluster.notes) note(text);
  const bool named = std::any_of(cluster.specs.begin(), cluster.specs.end(),
                                 [](const topology::DeviceSpec& spec) { return !spec.name.empty(); });
  if (!cluster.devices.empty() && !named) note("the source names no card: a plan needs it, by --device");
  return cluster;
}

Calibration calibration_or_sheet(const topology::Cluster& cluster, const std::string& name,
                                 const NoteSink& note) {
  if (!name.empty() || !cluster.calibration.empty()) return calibration_of(cluster, name);
  note("no calibration fits this card: times are uncalibrated, from its data sheet");
  return uncalibrated(data_sheet_of(cluster));
}

void load_sources(const StepSources& sources, StepInput& input, const NoteSink& note) {
  input.model = sources.model_config
                    ? read_model_config(*sources.model_config, sources.model, sources.model_keys)
                    : load_model(sources.model, sources.model_keys);
  input.cluster = load_cluster(sources.cluster, note);
  input.calibration = sources.data_sheet ? uncalibrated(data_sheet_of(input.cluster))
                                         : calibration_or_sheet(input.cluster, sources.calibration, note);
  if (const std::string text = void_p2p(sources.cluster, input.cluster, input.calibration); !text.empty())
    note(text);
  input.request.model = &input.model;
  input.request.cluster = &input.cluster;
  input.request.calibration = &input.calibration;
}

ExecutionOptions execution_options(Transport transport) {
  ExecutionOptions options;
  options.transport = transport;
  options.pack_kernels = transport == Transport::nccl;
  return options;
}

}  // namespace usp
