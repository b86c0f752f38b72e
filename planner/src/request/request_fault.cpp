// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/request_fault.hpp"

#include "usp/base/text.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

using Fault = std::optional<RequestFault>;

/// Microbatches that a replica may have at most.
i64 most_microbatches(const PlanRequest& request) {
  const i64 given = request.workload.microbatches;
  return given > 1 ? given : global_batch_of(request).value_or(1);
}

Fault of_dense_model(const PlanRequest& request) {
  const Workload& w = request.workload;
  const auto none = [&](const char* flag, const char* pointer) {
    return RequestFault{flag, pointer,
                        "has no effect: " + request.model->name + " has no experts; leave it out"};
  };
  if (w.expert > 1) return none("--expert", "/workload/expert");
  if (w.expert_load != 1) return none("--expert-load", "/workload/expert_load");
  if (!w.expert_tensor) return none("--whole-experts", "/workload/expert_tensor");
  if (request.expert_overlap) return none("--overlap-experts", "/expert_overlap");
  return std::nullopt;
}

/// What tensor ranks split or hold says nothing where a request has one.
Fault of_tensor(const PlanRequest& request) {
  if (request.fixed.tensor != 1) return std::nullopt;
  const auto none = [](const char* flag, const char* pointer) {
    return RequestFault{
        flag, pointer,
        "has no effect: it is of several tensor ranks, and tensor is 1; leave one of them out"};
  };
  if (!request.workload.expert_tensor) return none("--whole-experts", "/workload/expert_tensor");
  if (!request.workload.sequence_parallel)
    return none("--no-sequence-parallel", "/workload/sequence_parallel");
  return std::nullopt;
}

Fault of_experts(const PlanRequest& request) {
  if (!request.model->moe) return of_dense_model(request);
  const Workload& w = request.workload;
  if (request.model->moe->experts % w.expert != 0)
    return RequestFault{"--expert", "/workload/expert",
                        fmt::format("{} experts do not divide over {}; give a divisor",
                                    request.model->moe->experts, counted(w.expert, "rank"))};
  const bool one_rank = !request.search_expert && w.expert == 1;
  if (one_rank && w.expert_load != 1)
    return RequestFault{"--expert-load", "/workload/expert_load",
                        "has no effect: with one expert rank (--expert 1) none is busier than the mean"};
  if (!request.expert_overlap) return std::nullopt;
  if (one_rank)
    return RequestFault{"--overlap-experts", "/expert_overlap",
                        "has no effect: with one expert rank (--expert 1) nothing is exchanged"};
  if (most_microbatches(request) == 1)
    return RequestFault{
        "--overlap-experts", "/expert_overlap",
        "has no effect: a batch of one microbatch has no other to run beside; give several by "
        "--microbatches or --global-batch"};
  return std::nullopt;
}

Fault of_offload(const PlanRequest& request) {
  const Constraints& fixed = request.fixed;
  if (!fixed.offload || !fixed.recompute) return std::nullopt;
  const Recompute recompute = *fixed.recompute;
  if (recompute == Recompute::offload && !fixed.offload->any())
    return RequestFault{"--offload", "/fixed/offload",
                        "none contradicts recompute offload, which keeps layer inputs in host memory; give "
                        "recompute full"};
  const Offload lost = fixed.offload->without(kept_by(recompute));
  if (!lost.any()) return std::nullopt;
  return RequestFault{
      "--offload", "/fixed/offload",
      fmt::format(
          "recompute {} keeps {} alone, so that no {} can wait in host memory; give kinds that are kept, "
          "or another recompute",
          word_of(recompute), kinds_text(kept_by(recompute)), kinds_text(lost, " and no "))};
}

Fault of_layers(const PlanRequest& request) {
  const Workload& w = request.workload;
  const Constraints& fixed = request.fixed;
  const i64 layers = request.model->layers;
  const auto more = [&](const char* flag, const char* pointer, std::optional<i64> given) -> Fault {
    if (given.value_or(0) <= layers) return std::nullopt;
    return RequestFault{
        flag, pointer,
        fmt::format("{} is more than the {} of {}", *given, counted(layers, "layer"), request.model->name)};
  };
  if (Fault fault = more("--recompute-layers", "/workload/recompute_layers", w.recompute_layers))
    return fault;
  if (Fault fault = more("--offload-layers", "/workload/offload_layers", w.offload_layers)) return fault;
  if (Fault fault = more("--pipeline", "/workload/pipeline", w.pipeline)) return fault;
  if (i64{w.pipeline} * w.virtual_stages > layers)
    return RequestFault{"--virtual-stages", "/workload/virtual_stages",
                        fmt::format("{} of {} need a layer each, and {} has {}", counted(w.pipeline, "stage"),
                                    counted(w.virtual_stages, "chunk"), request.model->name, layers)};
  if (w.recompute_layers && fixed.recompute == Recompute::none)
    return RequestFault{"--recompute-layers", "/workload/recompute_layers",
                        "has no effect: recompute none computes nothing again in any layer"};
  if (w.offload_layers && fixed.offload && !fixed.offload->any() && fixed.recompute != Recompute::offload)
    return RequestFault{"--offload-layers", "/workload/offload_layers",
                        "has no effect: offload none moves nothing of any layer"};
  return std::nullopt;
}

/// The fixed choices, in words of flags and keys, with which no ring ships latents.
std::vector<std::string> against_latents(const Constraints& fixed) {
  std::vector<std::string> found;
  if (fixed.ring == 1) found.emplace_back("ring 1");
  if (fixed.ulysses.value_or(1) > 1) found.push_back(fmt::format("ulysses {}", *fixed.ulysses));
  if (fixed.method.value_or(Method{}) != Method{})
    found.push_back(fmt::format("method {}", word_of(*fixed.method)));
  if (fixed.head_chunks.value_or(1) > 1) found.push_back(fmt::format("head_chunks {}", *fixed.head_chunks));
  if (fixed.gated) found.emplace_back("gated");
  if (fixed.dkv_return.value_or(DkvReturn::circulate) != DkvReturn::circulate)
    found.push_back(fmt::format("dkv_return {}", word_of(*fixed.dkv_return)));
  return found;
}

Fault of_latents(const PlanRequest& request) {
  if (!request.latent_kv) return std::nullopt;
  const char *flag = "--latent-kv", *pointer = "/latent_kv";
  if (!request.model->mla)
    return RequestFault{flag, pointer,
                        "has no effect: " + request.model->name + " has no latent attention; leave it out"};
  if (against_latents(request.fixed).empty()) return std::nullopt;
  return RequestFault{flag, pointer,
                      fmt::format("a plain ring alone ships latents; leave out {}",
                                  join(against_latents(request.fixed), " and "))};
}

}  // namespace

bool allows_latent(const PlanRequest& request) {
  return request.model->mla && against_latents(request.fixed).empty();
}

std::optional<RequestFault> request_fault(const PlanRequest& request) {
  for (const auto rule : {of_experts, of_tensor, of_offload, of_layers, of_latents})
    if (Fault fault = rule(request)) return fault;
  return std::nullopt;
}

}  // namespace usp
