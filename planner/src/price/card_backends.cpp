// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/detail/card_backends.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace usp {
namespace {

using schedule::UnsupportedReason;

/// "hopper cards", "cards from ampere on"; of a backend of two parts those of the part that fewer generations
/// run.
std::string cards_of(Backend backend) {
  const auto &forward = backend.of(Pass::forward)->generations,
             &backward = backend.of(Pass::backward)->generations;
  const auto& fewer = forward.size() < backward.size() ? forward : backward;
  if (fewer.size() == 0) return "no known cards";
  return fewer.size() > 1 ? fmt::format("NVIDIA cards from {} on", *fewer.begin())
                          : fmt::format("{} cards", *fewer.begin());
}

}  // namespace

const topology::DeviceSpec* CardBackends::refusing(Backend backend) const {
  if (!backend->on_gpu) return nullptr;
  const bool own = !calibration_.cluster.empty() && calibration_.cluster == cluster_.name;
  if (own && calibration_.measured(backend)) return nullptr;
  for (const topology::DeviceSpec& card : cluster_.specs)
    if (!runs_on_generation(backend, card.generation)) return &card;
  return nullptr;
}

std::string CardBackends::refusal(Backend backend) const {
  const topology::DeviceSpec* const card = refusing(backend);
  if (card == nullptr) return "";
  const std::string name = card->name.empty() ? "this card" : card->name;
  if (card->generation.empty())
    return fmt::format(
        "it is for {}, and the generation of {} is not known: name it with --device, or in the "
        "cluster file",
        cards_of(backend), name);
  return fmt::format("it is for {}, and {} is {}", cards_of(backend), name, card->generation);
}

void CardBackends::check_runs(const AttentionPlan& call, bool training) const {
  const topology::DeviceSpec* const card = refusing(call.backend);
  if (card == nullptr || card->generation.empty() || topology::on_host_cores(cluster_)) return;
  const std::string others = taking_words(call, training);
  throw Infeasible(
      fmt::format("backend {}: {}", word_of(call.backend), refusal(call.backend)),
      {others.empty() ? std::string("no --backend: none of GPUs takes this call there, and it is "
                                    "priced by the rates of the cards")
                      : fmt::format("--backend {}", others),
       fmt::format("a cluster of {}", cards_of(call.backend))});
}

std::string CardBackends::unknown_note(Backend backend) const {
  const topology::DeviceSpec* const card = refusing(backend);
  if (card == nullptr || !card->generation.empty() || topology::on_host_cores(cluster_)) return "";
  return fmt::format("backend {}: {}; it is priced as if it ran there", word_of(backend), refusal(backend));
}

std::string CardBackends::priced_devices_note(const AttentionPlan& call, bool training, bool of_host) const {
  const bool hosts = of_host || calibration_.link_class == host_links;
  if (hosts == !call.backend->on_gpu) return "";
  if (hosts)
    return fmt::format(
        "backend {} is priced as ranks of a host: the times say nothing about GPUs; give a cluster for times",
        word_of(call.backend));
  const std::string words = taking_words(call, training);
  return fmt::format("backend {} is priced as GPUs of the cluster: the times say nothing about a host; {}",
                     word_of(call.backend),
                     words.empty() ? fmt::format("no backend of GPUs takes this call there ({})",
                                                 all_objections(call, training))
                                   : fmt::format("backend {} makes a plan that GPUs execute", words));
}

std::string CardBackends::objection(const AttentionPlan& plan, bool training) const {
  if (std::string why = refusal(plan.backend); !why.empty()) return why;
  for (const Pass pass : {Pass::forward, Pass::backward})
    if (const UnsupportedReason why = schedule::unsupported_reason(plan, pass);
        why != UnsupportedReason::none && (pass == Pass::forward || training))
      return schedule::text_of(why, plan.backend.of(pass));
  return "";
}

std::string CardBackends::all_objections(AttentionPlan plan, bool training) const {
  std::vector<std::string> texts;
  for (const Backend backend : backends()) {
    if (!backend->on_gpu || backend.has_parts()) continue;
    plan.backend = backend;
    const std::string why = objection(plan, training);
    if (why.empty()) return "";
    texts.push_back(fmt::format("{}: {}", word_of(backend), why));
  }
  return join(texts, "; ");
}

std::string CardBackends::taking_words(AttentionPlan plan, bool training) const {
  std::vector<std::string> words;
  for (const Backend backend : backends()) {
    plan.backend = backend;
    if (backend->on_gpu && objection(plan, training).empty()) words.emplace_back(word_of(backend));
  }
  return join(words, " or ");
}

Backend CardBackends::computing(const AttentionPlan& plan, Pass pass, Range query_heads) const {
  const Backend own = plan.backend.of(pass);
  if (own->fallback == nullptr) return own;
  const bool of_cards = run(last_fallback(own));
  AttentionPlan part = plan;
  for (part.backend = own;;) {
    const bool takes = schedule::unsupported_reason(part, pass, query_heads) == UnsupportedReason::none;
    if (takes && (!of_cards || run(part.backend))) return part.backend;
    if (part.backend->fallback == nullptr) return part.backend;
    part.backend = part.backend == own ? fallback_of(plan.backend, pass) : fallback_of(part.backend);
  }
}

std::vector<Backend> CardBackends::measured() const {
  std::vector<Backend> measured;
  for (const Backend backend : backends())
    if (calibration_.measured(backend)) measured.push_back(backend);
  std::stable_partition(measured.begin(), measured.end(),
                        [&](Backend backend) { return backend->word == calibration_.kernel_backend; });
  return measured;
}

Backend CardBackends::of_layer(AttentionPlan plan, bool training) const {
  const auto computes = [&](Backend backend) {
    plan.backend = backend;
    const auto takes = [&](Pass pass) {
      return schedule::unsupported_reason(plan, pass) == UnsupportedReason::none;
    };
    return run(backend) && (takes(Pass::forward) || (training && takes(Pass::backward))) &&
           too_many_gpu_rows(plan).empty();
  };
  for (const Backend backend : preferred_gpu_backends())
    if (calibration_.measured(backend) && computes(backend)) return backend;
  if (const auto priced = find_backend(calibration_.kernel_backend);
      priced && (*priced)->on_gpu && computes(*priced))
    return *priced;
  const Backend preferred = preferred_gpu_backend();
  for (const Backend backend : {preferred, last_fallback(preferred)})
    if (computes(backend)) return backend;
  return Backend{};
}

std::string unmeasured_kernels_note(const Calibration& calibration, const AttentionPlan& plan,
                                    const std::vector<Backend>& computing) {
  if (calibration.kernel_backend.empty() || calibration.link_class == host_links) return "";
  for (const Backend backend : computing)
    if (backend->on_gpu && !calibration.measured(backend))
      return fmt::format(
          "backend {}: {} computes it, whose kernels calibration {} did not measure: it is priced by those "
          "of {}; "
          "measure them on a host of the cluster with usp calibrate --device cuda",
          word_of(plan.backend), word_of(backend), calibration.name, calibration.kernel_backend);
  return "";
}

std::string scores_note(const Calibration& calibration, const AttentionPlan& plan, Backend computes) {
  std::vector<std::string_view> terms;
  if (plan.score.softcap != 0) terms.emplace_back("softcap");
  if (plan.score.alibi) terms.emplace_back("ALiBi");
  if (plan.score.dropout != 0) terms.emplace_back("dropout");
  if (terms.empty() || !computes->on_gpu) return "";
  return fmt::format("logits with {} are computed by {}, {}", fmt::join(terms, " and "), word_of(computes),
                     calibration.measured(computes)
                         ? "by whose kernels, measured without, they are priced: attention takes longer"
                         : "whose kernels the calibration did not measure: attention takes longer than its "
                           "price");
}

}  // namespace usp
