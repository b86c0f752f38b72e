// SPDX-License-Identifier: Apache-2.0
// What the answer for one call says beside its plan.
#include "usp/base/units.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <cmath>

namespace usp {
namespace {

AttentionPlan call_of(const AttentionRequest& request) {
  AttentionPlan plan;
  plan.shape = request.shape;
  plan.score = request.score;
  plan.backend = request.backend.value_or(Backend{});
  return plan;
}

/// Which backends of GPUs would take the call, or what each does not take of it.
std::string of_gpus(const AttentionRequest& request) {
  const CardBackends cards(*request.cluster, *request.calibration);
  const AttentionPlan call = call_of(request);
  const std::string words = cards.taking_words(call, request.training);
  return words.empty() ? fmt::format("no backend of GPUs takes this call there ({})",
                                     cards.all_objections(call, request.training))
                       : fmt::format("backend {} makes a plan that GPUs execute", words);
}

}  // namespace

std::string priced_devices_note(const AttentionRequest& request) {
  const bool hosts = request.all_devices || request.calibration->link_class == host_links;
  const Backend asked = request.backend.value_or(Backend{});
  if (hosts == !asked->on_gpu) return "";
  return hosts ? fmt::format(
                     "backend {} is priced as ranks of a host: the times say nothing about GPUs; give a "
                     "cluster for times",
                     word_of(asked))
               : fmt::format(
                     "backend {} is priced as GPUs of the cluster: the times say nothing about a host; {}",
                     word_of(asked), of_gpus(request));
}

std::string block_pattern_note(const ScoreRules& score) {
  return fmt::format(
      "block pattern: the blocks of {} tokens that it skips come with the run, so that times, bytes and "
      "memory are those of the mask without it: an upper bound",
      score.block_tokens);
}

std::string gates_note(double gated_s, double ungated_s) {
  constexpr double same = 5e-4;  // is 0.0% in one digit
  const double change = ungated_s / gated_s - 1;
  if (std::abs(change) < same) return "gates: this layout without them is priced as long (--gated)";
  return fmt::format("gates: this layout without them takes {} {} (--gated)",
                     format_percent(std::abs(change)), change < 0 ? "less" : "more");
}

std::string other_architecture_note(const AttentionRequest& request) {
  const Backend asked = request.backend.value_or(Backend{});
  if (request.all_devices || topology::on_host_cores(*request.cluster)) return "";
  const CardBackends cards(*request.cluster, *request.calibration);
  const std::string refusal = cards.refusal(asked);
  if (refusal.empty()) return "";
  if (!cards.run(last_fallback(asked)))
    return fmt::format("backend {}: {}; nothing of it runs there, whatever the times say", word_of(asked),
                       refusal);
  const AttentionPlan call = call_of(request);
  const auto computing = [&](Pass pass) {
    return word_of(cards.computing(call, pass, {0, call.shape.query_heads}));
  };
  const std::string_view forward = computing(Pass::forward), backward = computing(Pass::backward);
  if (!request.training || forward == backward)
    return fmt::format("backend {}: {}; its steps go to {} there", word_of(asked), refusal, forward);
  return fmt::format("backend {}: {}; its forward goes to {} there, its backward to {}", word_of(asked),
                     refusal, forward, backward);
}

}  // namespace usp
