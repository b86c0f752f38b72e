// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"
#include "step_terms.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {

using namespace terms;

namespace {

/// Bytes of one reduction of gradients that ZeRO stages up to 2 collect over layers (Megatron-LM: at least 40
/// million parameters, or a million for each replica).
constexpr double bucket_bytes = 1e9;

}  // namespace

Estimate StepPricer::group_time(Collective operation, i64 ranks, i64 stride, double bytes) const {
  if (ranks <= 1 || bytes <= 0) return {};
  const i64 near = near_ranks(ranks, stride);
  const i64 nodes = (ranks + near - 1) / near;
  Estimate time =
      near > 1 ? request_.calibration->comm.time(operation, static_cast<int>(near), bytes) : Estimate{};
  if (nodes <= 1) return time;
  if (nic_bytes_s_ <= 0)
    throw MissingValue({"cluster", 0, "nics"}, "the rate of the NICs between hosts",
                       "give it with --nic 8x400G");
  // `stride` groups cross at once and share the node's NICs; one ring enters each node once per group.
  const double line_s = bytes * d(nodes - 1) / d(nodes) * d(stride) / nic_bytes_s_;
  const auto crossing = [&](NetworkOperation part) {
    return links_->between_hosts(part, static_cast<int>(nodes), static_cast<int>(near), bytes, line_s);
  };
  Estimate slow;
  if (operation != Collective::reduce_scatter) slow += crossing(NetworkOperation::all_gather);
  if (operation != Collective::all_gather) slow += crossing(NetworkOperation::reduce_scatter);
  return slow.seconds > time.seconds ? slow : time;
}

namespace {

/// Of `places` of which each token's `copies` experts lie on any with equal chance: those with one at least.
double distinct(double places, double copies) {
  return places * (1 - std::pow(1 - 1 / places, copies));
}

}  // namespace

Estimate StepPricer::expert_time(i64 ranks, i64 stride, double bytes, double copies) const {
  if (ranks <= 1 || bytes <= 0) return {};
  const i64 near = near_ranks(ranks, stride);
  // A token goes to each host once and from there to each rank once, however many of its experts are there,
  // and comes back summed in the same way: DeepEP's and HybridEP's kernels.
  const double inside = bytes * distinct(d(ranks), copies);
  Estimate time = near > 1
                      ? request_.calibration->comm.time(Collective::alltoall, static_cast<int>(near), inside)
                      : Estimate{};
  if (near == ranks) return time;
  if (nic_bytes_s_ <= 0)
    throw MissingValue({"cluster", 0, "nics"}, "the rate of the NICs between hosts",
                       "give it with --nic 8x400G");
  // Each device sends through its share of the host's NICs, at an all-to-all's rate, as kernels made for the
  // exchange do (DeepEP: 43 to 58 of 50 GB/s).
  const double hosts = d((ranks + near - 1) / near);
  const double leaving = bytes * distinct(hosts, copies) * (hosts - 1) / hosts;
  const Estimate far = links_->between_hosts(NetworkOperation::alltoall, static_cast<int>(hosts), 1, bytes,
                                             leaving * devices_per_node_ / nic_bytes_s_);
  return far.seconds > time.seconds ? far : time;
}

i64 StepPricer::near_ranks(i64 ranks, i64 stride) const {
  return std::max<i64>(1, std::min<i64>(ranks, domain_devices_ / std::max<i64>(1, stride)));
}

double StepPricer::crossing_bytes(i64 ranks, i64 stride, double bytes) const {
  const i64 near = near_ranks(ranks, stride);
  const i64 hosts = (ranks + near - 1) / near;
  return hosts <= 1 ? 0 : bytes * d(hosts - 1) / d(hosts) / d(near);
}

/// Transfers of one kind over all layers of a stage.
Estimate StepPricer::over_layers(Collective operation, double element, const StateShare& s) const {
  // Stage 3 layer by layer, the others by buckets; experts over the ranks that hold the same ones.
  const auto pieces = [&](double bytes) {
    return s.by_layer ? s.layers : std::min(s.layers, std::max(1.0, bytes / bucket_bytes));
  };
  const double n = pieces(s.dense * element), m = pieces(s.experts * element);
  const Estimate shared = group_time(operation, s.ranks, s.tensor, s.dense / n * element);
  const Estimate routed =
      group_time(operation, s.holders, s.ranks * s.tensor / s.holders, s.experts / m * element);
  return Estimate{n * shared.seconds + m * routed.seconds, std::max(shared.band, routed.band),
                  shared.extrapolation | routed.extrapolation};
}

void StepPricer::add_states(PlanCandidate& c, StepContext& step) const {
  const Workload& w = step.workload;
  const Choice& choice = c.choice;
  if (!parameters_.total)
    throw MissingValue({request_.model->name, 0, ""}, "the number of parameters",
                       "the model's notes say which key is missing");
  StateShare s;
  s.ranks = i64{choice.data()} * choice.mesh.size();
  s.tensor = choice.tensor();
  s.holders = w.expert_pool(s.ranks, s.tensor) / w.expert;
  s.experts =
      d(parameters_.experts.value_or(0)) / (w.expert_tensor ? choice.tensor() : 1) / w.pipeline / w.expert;
  s.dense = d(*parameters_.total - parameters_.experts.value_or(0)) / choice.tensor() / w.pipeline;
  s.layers = std::max(1.0, d(request_.model->layers) / w.pipeline);
  s.by_layer = choice.zero_stage == 3;
  if (choice.zero_stage == 3)
    add_gathers(c, s, step);
  else if (w.training)
    add_reduction(c, s, step);
  if (!w.training) return;
  const double shard =
      choice.zero_stage >= 1 ? s.dense / d(s.ranks) + s.experts / d(s.holders) : s.dense + s.experts;
  const double bytes_per_parameter =
      w.optimizer == Optimizer::adamw ? 30 : 14;  // states read and written, gradient read, weight written
  add(c, "optimizer", shard * bytes_per_parameter / streamed_bytes_s(machine_.memory_bytes_s), 0.3,
      "one pass over the states at memory bandwidth");
}

void StepPricer::add_reduction(PlanCandidate& c, const StateShare& s, const StepContext& step) const {
  const Workload& w = step.workload;
  const bool sharded = c.choice.zero_stage > 0;
  const Estimate reduce = over_layers(sharded ? Collective::reduce_scatter : Collective::all_reduce,
                                      w.fp32_gradients ? 4 : bytes_of(w.dtype), s);
  const Estimate gather = sharded ? over_layers(Collective::all_gather, bytes_of(w.dtype), s) : Estimate{};
  const double share = 1 / d(w.microbatches);
  // The first gather and the last reduction have nothing beside them.
  const Estimate alone{(reduce.seconds + gather.seconds) / s.layers, std::max(reduce.band, gather.band)};
  const Estimate exposed =
      shown({{reduce, step.backward_s * share}, {gather, step.forward_s * share}, {alone, 0}});
  add(c, "gradient reduction", exposed.seconds, exposed.band,
      "beside backward of the last microbatch; updated weights gathered beside forward of the first");
  c.extrapolation |= reduce.extrapolation;
  if (w.microbatches == 1) return;
  // Each microbatch's products read the sums so far and write them back; ZeRO-3 keeps them in shards.
  const double bytes =
      d(w.microbatches) * 2 * (w.fp32_gradients ? 4 : bytes_of(w.dtype)) * (s.dense + s.experts);
  add(c, "gradient accumulation", bytes / streamed_bytes_s(machine_.memory_bytes_s), 0.3,
      "gradients of all weights read and written by each microbatch");
}

void StepPricer::add_gathers(PlanCandidate& c, const StateShare& s, StepContext& step) const {
  const Workload& w = step.workload;
  const Estimate gather = over_layers(Collective::all_gather, bytes_of(w.dtype), s);
  const Estimate scatter =
      w.training ? over_layers(Collective::reduce_scatter, w.fp32_gradients ? 4 : bytes_of(w.dtype), s)
                 : Estimate{};
  const double times = d(w.microbatches);
  const Estimate forward{times * gather.seconds, gather.band};
  const Estimate backward{w.training ? times * (gather.seconds + scatter.seconds) : 0,
                          std::max(gather.band, scatter.band)};
  const Estimate alone{(gather.seconds + scatter.seconds) / s.layers, gather.band};
  const Estimate exposed = shown({{forward, step.forward_s}, {backward, step.backward_s}, {alone, 0}});
  const double element = bytes_of(w.dtype), gradient = w.fp32_gradients ? 4 : element;
  const double crossing = times * (crossing_bytes(s.ranks, s.tensor, s.dense) +
                                   crossing_bytes(s.holders, s.ranks * s.tensor / s.holders, s.experts));
  step.nic_forward = element * crossing;
  step.nic_backward = w.training ? (element + gradient) * crossing : 0;
  step.gathers_shown_s = exposed.seconds;
  add(c, "ZeRO-3 gathers that show", exposed.seconds, exposed.band,
      fmt::format("{} of gathers and gradient scatters, ahead of use: what exceeds the compute, and {}% of "
                  "the rest for the multiprocessors that they hold",
                  format_seconds(forward.seconds + backward.seconds),
                  format_fixed(100 * beside_products, 0)));
  c.extrapolation |= gather.extrapolation;
}

void StepPricer::add_offload(PlanCandidate& c, StepContext& step) const {
  const Workload& w = step.workload;
  const i64 kept = c.memory.host_total_bytes;
  if (!w.training || kept == 0) return;
  const topology::Quantity& pcie = request_.cluster->nodes.front().pcie_gb_s;
  if (!pcie.known())
    throw MissingValue({"cluster", 0, "nodes"}, "the PCIe bandwidth of a device", "give it with --pcie");
  // The table holds what one stage keeps of the microbatches in flight at once; all of a step pass the link.
  const double bytes =
      d(kept) * d(w.microbatches) / std::max(1.0, in_flight_microbatches(w, w.pipeline, c.memory.stage));
  // The ranks of a host write to and read from one memory; what ZeRO moves between hosts passes the same
  // slot.
  const double slot = *pcie.value * 1e9;
  const double share = host_bytes_s_ > 0 ? host_bytes_s_ / devices_per_node_ : slot;
  const double rate = std::min(slot, share);
  const double forward = bytes / rate + step.nic_forward / slot;
  const double backward = bytes / rate + step.nic_backward / slot;
  const double shows = std::max(0.0, forward - step.forward_s) + std::max(0.0, backward - step.backward_s);
  add(c, "offload that shows", std::max(0.0, shows - step.gathers_shown_s), 0.3,
      fmt::format("{} to host memory and back at {}{}, beside the compute{}", format_bytes(bytes),
                  format_byte_rate(rate),
                  rate < slot
                      ? fmt::format(", a share of {} ranks in the memory of their host", devices_per_node_)
                      : std::string(" over PCIe"),
                  step.nic_forward > 0 ? " and what ZeRO-3 moves over the same slot" : ""));
}

}  // namespace usp
