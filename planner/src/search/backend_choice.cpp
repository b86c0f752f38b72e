// SPDX-License-Identifier: Apache-2.0
#include "backend_choice.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/step_backends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace usp {
namespace {

/// The one that plans take first, then the others.
std::vector<Backend> measured_backends(const Calibration& calibration) {
  std::vector<Backend> measured;
  for (const Backend backend : backends())
    if (calibration.measured(backend)) measured.push_back(backend);
  std::stable_partition(measured.begin(), measured.end(),
                        [&](Backend backend) { return backend->word == calibration.kernel_backend; });
  return measured;
}

std::string other_cards(Backend backend, const topology::Cluster& cluster) {
  if (backend->generation.empty()) return "";
  for (const topology::DeviceSpec& card : cluster.specs)
    if (!card.generation.empty() && card.generation != backend->generation)
      return fmt::format("it is for {} cards, and {} is {}", backend->generation, card.name, card.generation);
  return "";
}

/// What it does not take of every call of this shape; empty: nothing of the kind.
std::string objection_to(Backend backend, const AttentionRequest& request) {
  if (std::string why = other_cards(backend, *request.cluster); !why.empty()) return why;
  AttentionPlan plan;
  plan.shape = request.shape;
  plan.score = request.score;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && !request.training) continue;
    const schedule::CallTraits call = schedule::call_traits(plan, pass, {0, request.shape.query_heads});
    const Backend part = backend.of(pass);
    const schedule::UnsupportedReason why = schedule::unsupported_reason(part->takes, call);
    if (why != schedule::UnsupportedReason::none) return schedule::text_of(why, part);
  }
  return "";
}

/// What its best plan leaves to its fallback, whose kernels its price knows nothing of.
std::string left_of(Backend backend, const AttentionResult& result) {
  i64 left = 0, all = 0;
  std::string why, to;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const auto& steps = pass == Pass::forward ? result.forward_steps : result.backward_steps;
    if (!steps) continue;
    const Backend part = backend.of(pass);
    const i64 others = steps->steps() - steps->of(part) + steps->mixed;
    all += steps->steps();
    left += others;
    if (others == 0 || !to.empty()) continue;
    to = word_of(fallback_of(backend, pass));
    if (!steps->why.empty()) why = schedule::text_of(steps->why.front(), part);
  }
  if (left == 0) return "";
  return fmt::format("it leaves {} of {} steps to {}{}{}", left, all, to, why.empty() ? "" : ": ", why);
}

}  // namespace

AttentionResult with_fastest_backend(const AttentionRequest& request,
                                     const std::function<AttentionResult(const AttentionRequest&)>& search) {
  std::vector<BackendPrice> prices;
  std::optional<AttentionResult> best;
  std::tuple<bool, double> least;  // whole calls before those of which steps are left to a fallback
  i64 considered = 0;
  AttentionRequest asked = request;
  for (const Backend backend : measured_backends(*request.calibration)) {
    BackendPrice& price = prices.emplace_back();
    price.backend = backend;
    price.objection = objection_to(backend, request);
    if (!price.objection.empty()) continue;
    asked.backend = backend;
    try {
      AttentionResult result = search(asked);
      considered += result.considered;
      price.seconds = result.best().seconds();
      price.band = result.best().band();
      price.description = describe(result.best());
      price.objection = left_of(backend, result);
      const std::tuple time(!price.objection.empty(), price.seconds);
      if (best && time >= least) continue;
      least = time;
      best = std::move(result);
    } catch (const Infeasible& error) {  // such as more rows than a GPU's kernels count
      price.objection = error.what();
    }
  }
  if (!best) {
    asked.backend = Backend{};
    best = search(asked);
    considered = best->considered;
  }
  std::stable_sort(prices.begin(), prices.end(), [&](const BackendPrice& a, const BackendPrice& b) {
    const auto rank = [&](const BackendPrice& p) {
      return std::tuple(p.backend != best->best().plan.backend, !p.objection.empty(), p.seconds);
    };
    return rank(a) < rank(b);
  });
  for (BackendPrice& p : prices)
    p.tie = p.objection.empty() && p.backend != best->best().plan.backend &&
            p.seconds / (1 + p.band) < best->best().seconds() * (1 + best->best().band());
  if (prices.size() > 1) best->backends = std::move(prices);
  best->considered = considered;
  return *std::move(best);
}

}  // namespace usp
