// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/detail/flops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

/// Share of the peak that large matrix products reach: 767 of 989 TFLOP/s measured for 8192^3 in bf16 on
/// H100; taken for every card.
constexpr double matmul_efficiency = 0.775;
constexpr double matmul_band = 0.15;

void add(PlanCandidate& c, const char* name, double seconds, double band, std::string reason) {
  if (seconds > 0) c.terms.push_back({name, seconds, band, std::move(reason)});
}

}  // namespace

Estimate StepPricer::group_time(Collective operation, i64 ranks, i64 stride, double bytes) const {
  if (ranks <= 1 || bytes <= 0) return {};
  const i64 near = std::max<i64>(1, std::min<i64>(ranks, domain_devices_ / std::max<i64>(1, stride)));
  const i64 nodes = (ranks + near - 1) / near;
  Estimate time =
      near > 1 ? request_.calibration->comm.time(operation, static_cast<int>(near), bytes) : Estimate{};
  if (nodes <= 1) return time;
  if (nic_bytes_s_ <= 0)
    throw MissingValue({"cluster", 0, "nics"}, "the NICs between hosts", "give them with --nic 8x400G");
  const Efficiency share = inter_node_ring_efficiency(static_cast<int>(nodes), bytes);
  // `stride` groups cross at once and share the node's NICs; one ring enters each node once per group.
  const double crossing = bytes * static_cast<double>(nodes - 1) / static_cast<double>(nodes) *
                          (operation == Collective::all_reduce ? 2 : 1) * static_cast<double>(stride);
  const double slow = crossing / (nic_bytes_s_ * share.value);
  if (slow > time.seconds) time = {slow, share.band(), bits(Extrapolation::inter_node)};
  return time;
}

void StepPricer::add_time(PlanCandidate& c, const std::vector<LayerAttention>& attention) const {
  const Workload& w = request_.workload;
  const auto microbatches = static_cast<double>(w.microbatches);
  double forward = 0, backward = 0, forward_band = 0, backward_band = 0;
  double exposed = 0;
  for (const LayerAttention& layer : attention) {
    const double layers =
        static_cast<double>(request_.model->kinds[layer.kind].layers.size()) / w.pipeline * microbatches;
    forward += layers * layer.price.forward.seconds;
    forward_band += layers * layer.price.forward.seconds * layer.price.forward.band;
    exposed += layers * layer.price.forward.exposed_s;
    c.extrapolation |= layer.price.forward.extrapolation;
    if (!w.training) continue;
    backward += layers * layer.price.backward.seconds;
    backward_band += layers * layer.price.backward.seconds * layer.price.backward.band;
    exposed += layers * layer.price.backward.exposed_s;
    c.extrapolation |= layer.price.backward.extrapolation;
  }
  const std::string shown = fmt::format("schedule priced tick by tick; {} ms of exchange show in both passes",
                                        format_fixed(exposed * 1e3, 0));
  add(c, "attention forward", forward, forward > 0 ? forward_band / forward : 0, shown);
  const bool again =
      w.training && (c.choice.recompute == Recompute::full || c.choice.recompute == Recompute::offload);
  if (again)
    add(c, "attention recomputed", forward, forward_band / std::max(forward, 1e-30),
        "full recompute runs the forward schedule again");
  add(c, "attention backward", backward, backward > 0 ? backward_band / backward : 0,
      "the mirrored schedule");
  double compute_s = forward * (again ? 2 : 1) + backward;
  add_dense(c, compute_s);
  add_tensor(c);
  add_states(c, compute_s);
  add_offload(c, compute_s);
  double sum = 0, band = 0;
  for (const TimeTerm& term : c.terms) sum += term.seconds;
  if (w.pipeline > 1)
    add(c, "pipeline bubble", sum * (w.pipeline - 1) / microbatches, 0.1,
        "(stages - 1) / microbatches of the work");
  for (const TimeTerm& term : c.terms) {
    c.step_s += term.seconds;
    band += term.seconds * term.band;
  }
  c.band = c.step_s > 0 ? band / c.step_s : 0;
  c.seconds_per_token = c.step_s / (static_cast<double>(w.tokens()) * c.choice.data());
}

void StepPricer::add_dense(PlanCandidate& c, double& compute_s) const {
  Workload w = undocumented_;
  w.recompute = c.choice.recompute;
  const i64 tokens = local_tokens(c.choice) * w.microbatches;
  const StepFlops flops = step_flops(*request_.model, w, tokens);
  const double rate = peak_flops_ * matmul_efficiency * c.choice.tensor() * w.pipeline;
  const std::string reason = fmt::format("{} local tokens at {}% of the peak rate", tokens,
                                         static_cast<int>(100 * matmul_efficiency));
  add(c, "projections, MLP, logits", (flops.forward + flops.backward) / rate, matmul_band, reason);
  add(c, "the same recomputed", flops.recompute / rate, matmul_band,
      fmt::format("recompute {}", word_of(c.choice.recompute)));
  compute_s += flops.total() / rate;
}

void StepPricer::add_tensor(PlanCandidate& c) const {
  const int tensor = c.choice.tensor();
  if (tensor == 1) return;
  const Workload& w = request_.workload;
  const double activation = static_cast<double>(local_tokens(c.choice)) *
                            static_cast<double>(request_.model->hidden * bytes_of(w.dtype));
  const Estimate gather = group_time(Collective::all_gather, tensor, 1, activation);
  const Estimate scatter = group_time(Collective::reduce_scatter, tensor, 1, activation);
  const bool again =
      w.training && (c.choice.recompute == Recompute::full || c.choice.recompute == Recompute::offload);
  const double passes = w.training ? (again ? 3 : 2) : 1;
  const double layers = static_cast<double>(request_.model->layers * w.microbatches) / w.pipeline;
  add(c, "tensor-parallel exchange", layers * passes * 2 * (gather.seconds + scatter.seconds),
      std::max(gather.band, scatter.band),
      "2 all-gathers and 2 reduce-scatters of the layer's activation per pass, not hidden");
}

void StepPricer::add_states(PlanCandidate& c, double compute_s) const {
  const Workload& w = request_.workload;
  const Choice& choice = c.choice;
  const i64 ranks = i64{choice.data()} * choice.mesh.size();
  if (!parameters_.total)
    throw MissingValue({request_.model->name, 0, ""}, "the number of parameters",
                       "the model's notes say which key is missing");
  const double parameters = static_cast<double>(*parameters_.total) / choice.tensor() / w.pipeline;
  const double weights = parameters * bytes_of(w.dtype);
  if (w.training && choice.zero_stage <= 2) {
    const Collective operation = choice.zero_stage == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    const Estimate reduce = group_time(operation, ranks, choice.tensor(), weights);
    const Estimate gather = choice.zero_stage == 0
                                ? Estimate{}
                                : group_time(Collective::all_gather, ranks, choice.tensor(), weights);
    add(c, "gradient reduction", std::max(0.0, reduce.seconds - 0.5 * compute_s) + gather.seconds,
        std::max(reduce.band, gather.band),
        "hidden behind half of the compute; updated weights gathered after the step");
  }
  if (choice.zero_stage == 3) {
    const Estimate gather = group_time(Collective::all_gather, ranks, choice.tensor(), weights);
    const Estimate scatter =
        w.training ? group_time(Collective::reduce_scatter, ranks, choice.tensor(), weights) : Estimate{};
    const double all =
        static_cast<double>(w.microbatches) * ((w.training ? 2 : 1) * gather.seconds + scatter.seconds);
    add(c, "ZeRO-3 gathers that show", std::max(0.0, all - compute_s), std::max(gather.band, scatter.band),
        "weights gathered in forward and backward, gradients scattered, ahead of use");
  }
  if (!w.training) return;
  const double shard = choice.zero_stage >= 1 ? parameters / static_cast<double>(ranks) : parameters;
  const double bytes_per_parameter =
      w.optimizer == Optimizer::adamw ? 30 : 14;  // states read and written, gradient read, weight written
  add(c, "optimizer", shard * bytes_per_parameter / memory_bytes_s_, 0.3,
      "one pass over the states at memory bandwidth");
}

void StepPricer::add_offload(PlanCandidate& c, double compute_s) const {
  if (c.choice.recompute != Recompute::offload || !request_.workload.training) return;
  const topology::Quantity& pcie = request_.cluster->nodes.front().pcie_gb_s;
  if (!pcie.known())
    throw MissingValue({"cluster", 0, "nodes"}, "the PCIe bandwidth of a device", "give it with --pcie");
  const double rate = *pcie.value * 1e9;
  const Workload& w = request_.workload;
  const double bytes =
      2.0 * static_cast<double>(local_tokens(c.choice) * w.microbatches) *
      static_cast<double>(request_.model->hidden * bytes_of(w.dtype) * request_.model->layers) / w.pipeline;
  add(c, "checkpoint offload that shows", std::max(0.0, bytes / rate - compute_s), 0.3,
      "to host memory and back over PCIe, beside the compute");
}

}  // namespace usp
