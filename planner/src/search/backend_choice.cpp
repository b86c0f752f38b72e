// SPDX-License-Identifier: Apache-2.0
#include "backend_choice.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/schedule/step_backends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace usp {
namespace {

/// What its best plan leaves to its fallback, whose kernels its price knows nothing of.
std::string left_of(Backend backend, const AttentionResult& result) {
  i64 left = 0, all = 0;
  std::string why, to;
  const StepSample& sample = result.step_sample;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const auto& steps = pass == Pass::forward ? sample.forward : sample.backward;
    if (!steps) continue;
    const Backend part = backend.of(pass);
    const i64 others = steps->steps() - steps->of(part) + steps->mixed;
    all += steps->steps();
    left += others;
    if (others == 0 || !to.empty()) continue;
    to = word_of(fallback_of(backend, pass));
    if (!steps->why.empty()) why = schedule::text_of(steps->why.front(), part);
  }
  const int ranks = result.best().plan.mesh.size();
  const std::string of = sample.ranks < ranks ? fmt::format(" of {} of {} ranks", sample.ranks, ranks) : "";
  if (all == 0 && backend->fallback != nullptr)
    return fmt::format("its steps are too many to look at; it may leave them to {}",
                       word_of(fallback_of(backend)));
  if (left == 0) return "";
  return fmt::format("it leaves {} of {} steps{} to {}{}{}", left, all, of, to, why.empty() ? "" : ": ", why);
}

}  // namespace

AttentionPlan call_of(const AttentionRequest& request, Backend backend) {
  AttentionPlan plan;
  plan.shape = request.shape;
  plan.score = request.score;
  plan.backend = backend;
  return plan;
}

AttentionResult with_fastest_backend(const AttentionRequest& request,
                                     const std::function<AttentionResult(const AttentionRequest&)>& search) {
  std::vector<BackendPrice> prices;
  std::optional<AttentionResult> best;
  std::tuple<bool, double> least;  // whole calls before those of which steps are left to a fallback
  i64 considered = 0;
  AttentionRequest asked = request;
  const CardBackends cards(*request.cluster, *request.calibration);
  for (const Backend backend : cards.measured()) {
    BackendPrice& price = prices.emplace_back();
    price.backend = backend;
    price.objection = cards.objection(call_of(request, backend), request.training);
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
  const bool chosen_alone = prices.size() == 1 && prices.front().backend == best->best().plan.backend;
  if (!chosen_alone) best->backends = std::move(prices);
  best->considered = considered;
  return *std::move(best);
}

}  // namespace usp
