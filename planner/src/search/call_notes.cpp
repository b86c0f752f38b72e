// SPDX-License-Identifier: Apache-2.0
// What the answer for one call says beside its plan.
#include "usp/planner/plan_attention.hpp"

#include <fmt/format.h>

namespace usp {

std::string priced_devices_note(const AttentionRequest& request) {
  const bool hosts = request.all_devices || request.calibration->link_class == host_links;
  const Backend asked = request.backend.value_or(Backend{});
  if (hosts == !asked->on_gpu) return "";
  const std::string backend(word_of(asked));
  return hosts ? fmt::format(
                     "backend {} is priced as ranks of a host: the times say nothing about GPUs; give a "
                     "cluster for times",
                     backend)
               : fmt::format(
                     "backend {} is priced as GPUs of the cluster: the times say nothing about a host; "
                     "backend {} makes a plan that GPUs execute",
                     backend, gpu_backend_words());
}

std::string block_pattern_note(const ScoreRules& score) {
  return fmt::format(
      "block pattern: the blocks of {} tokens that it skips come with the run, so that times, bytes and "
      "memory are those of the mask without it: an upper bound",
      score.block_tokens);
}

std::string other_architecture_note(const AttentionRequest& request) {
  const Backend asked = request.backend.value_or(Backend{});
  const std::string_view runs_on = asked->generation;
  if (request.all_devices || request.calibration->link_class == host_links || runs_on.empty()) return "";
  for (const topology::DeviceSpec& card : request.cluster->specs)
    if (!card.generation.empty() && card.generation != runs_on)
      return fmt::format(
          "backend {} does not run on {} ({}): its steps go to {} there, whatever the times say; name "
          "another backend",
          word_of(asked), card.name, card.generation, word_of(last_fallback(asked)));
  return "";
}

}  // namespace usp
