// SPDX-License-Identifier: Apache-2.0
#include "usp/base/digest.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/detail/axes.hpp"
#include "usp/planner/plan_attention.hpp"

#include <algorithm>

namespace usp {

PlanFile make_plan_file(const AttentionRequest& request, const AttentionCandidate& candidate) {
  PlanFile file;
  const AttentionShape& shape = candidate.plan.shape;
  file.model = "attention call";
  file.cluster = request.cluster->name;
  file.training = request.training;
  file.mesh = candidate.plan.mesh;
  file.placement = candidate.placement;
  file.capacity_tokens = shape.q_tokens;
  file.capacity_documents = std::max<i64>(1, static_cast<i64>(request.lengths.size()));
  file.documents = request.lengths;
  file.kv_documents = request.kv_lengths;
  file.overlap = request.execution.overlap;
  file.ulysses_transport = file.ring_transport = request.execution.transport;
  for (const AxisView& axis :
       axes_of(*request.cluster, file.mesh, file.placement, 1, request.execution.transport))
    (axis.name == "ulysses" ? file.ulysses_transport : file.ring_transport) = axis.transport;
  file.step_s = candidate.seconds();
  file.step_band = candidate.band();
  file.calibration = request.calibration->calibrated ? request.calibration->name : "uncalibrated";
  file.inputs = {request.fixed, request.execution, request.all_devices, std::nullopt};
  PlanLayer layer;
  layer.kind = request.band.diff_max < unbounded ? "sliding" : "softmax";
  layer.plan = candidate.plan;
  layer.forward = {candidate.price.forward.seconds, candidate.price.forward.band};
  if (request.training) layer.backward = {candidate.price.backward.seconds, candidate.price.backward.band};
  predict_bytes(layer, request.documents, request.training, file.workspace);
  if (file.workspace == WorkspaceBasis::bound) {
    layer.forward.workspace_bytes = static_cast<i64>(candidate.live_bytes);
    if (request.training) layer.backward.workspace_bytes = static_cast<i64>(candidate.live_bytes);
  }
  file.layers.push_back(std::move(layer));
  Digest digest;
  digest.add(shape.batch).add(shape.q_tokens).add(shape.kv_tokens).add(request.training);
  for (const i64 length : request.lengths) digest.add(length);
  file.workload_digest = digest.hex();
  file.model_digest = Digest()
                          .add(shape.query_heads)
                          .add(shape.kv_heads)
                          .add(shape.head_dim_qk)
                          .add(shape.head_dim_v)
                          .add(shape.dtype)
                          .hex();
  file.cluster_digest = cluster_digest(*request.cluster);
  return file;
}

}  // namespace usp
