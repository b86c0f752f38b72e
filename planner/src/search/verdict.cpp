// SPDX-License-Identifier: Apache-2.0
#include "doubts.hpp"
#include "step_pricer.hpp"

#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace usp {
namespace {

bool same_layout(const Choice& a, const Choice& b) {
  return a.mesh == b.mesh && a.data() == b.data() && a.tensor() == b.tensor();
}

std::map<std::string, const TimeTerm*> by_name(const PlanCandidate& c) {
  std::map<std::string, const TimeTerm*> terms;
  for (const TimeTerm& term : c.terms) terms[term.name] = &term;
  return terms;
}

double per_token(const PlanCandidate& c, double seconds) {
  return seconds * c.seconds_per_token / c.step_s;
}

/// Two block shapes priced by one fitted model err mostly together; this part of the fit's mean error is
/// taken to fall on each alone. An assumption, not a measurement.
constexpr double independent_part = 1.0 / 3;

double attention_per_token(const PlanCandidate& c) {
  double seconds = 0;
  for (const TimeTerm& term : c.terms)
    if (term.name.rfind("attention", 0) == 0) seconds += term.seconds;
  return per_token(c, seconds);
}

/// Errors that both candidates share cancel: what differs between them, each term by its own band, can turn
/// the order, and so can the part of the kernel error that is each shape's own.
double uncertainty(const PlanCandidate& a, const PlanCandidate& b, double kernel_error) {
  const auto x = by_name(a), y = by_name(b);
  double sum = independent_part * kernel_error * std::max(attention_per_token(a), attention_per_token(b));
  for (const auto& [name, term] : x) {
    const auto other = y.find(name);
    const double theirs = other == y.end() ? 0 : per_token(b, other->second->seconds);
    const double band = other == y.end() ? term->band : std::max(term->band, other->second->band);
    sum += band * std::abs(per_token(a, term->seconds) - theirs);
  }
  for (const auto& [name, term] : y)
    if (x.count(name) == 0) sum += term->band * per_token(b, term->seconds);
  return sum;
}

void suggest(const topology::Cluster& cluster, const PlanCandidate& c, std::vector<std::string>& out) {
  if (c.attention.empty()) return;
  const LayerAttention& first = c.attention.front();
  for (std::string& run : exchange_measurements(cluster, first.plan, first.price.forward))
    out.push_back(std::move(run));
}

/// Terms whose error alone, within its band, would put another candidate first.
std::vector<std::string> sensitive_terms(const std::vector<PlanCandidate>& ranked) {
  std::vector<std::string> names;
  const PlanCandidate& best = ranked.front();
  for (const TimeTerm& term : best.terms) {
    for (const PlanCandidate& other : ranked) {
      if (!other.fits || same_layout(best.choice, other.choice)) continue;
      const auto theirs = by_name(other);
      const auto found = theirs.find(term.name);
      const double difference = per_token(best, term.seconds) -
                                (found == theirs.end() ? 0 : per_token(other, found->second->seconds));
      const double lead = other.seconds_per_token - best.seconds_per_token;
      if (lead <= 0 || difference == 0)
        continue;  // the simplest of equals leads: the other is first as it is
      // Where the best spends more on it, it loses when the term is longer than thought; where less, when it
      // is shorter, which is never by more than all of it.
      const bool longer = difference > 0;
      const double possible = longer ? term.band : std::min(1.0, term.band);
      if (std::abs(difference) * possible <= lead) continue;
      names.push_back(fmt::format("{}: {}{} than priced puts '{}' first", term.name,
                                  format_percent(lead / std::abs(difference), 0), longer ? " more" : " less",
                                  describe(other.choice)));
      break;
    }
  }
  return names;
}

}  // namespace

bool within_bands(const PlanCandidate& a, const PlanCandidate& b, double kernel_error) {
  return std::abs(b.seconds_per_token - a.seconds_per_token) <= uncertainty(a, b, kernel_error);
}

Verdict compare_best(const topology::Cluster& cluster, const std::vector<PlanCandidate>& ranked,
                     double kernel_error) {
  Verdict verdict;
  const PlanCandidate& best = ranked.front();
  const auto second = std::find_if(ranked.begin() + 1, ranked.end(), [&](const PlanCandidate& c) {
    return c.fits && !same_layout(c.choice, best.choice);
  });
  if (second == ranked.end()) return verdict;
  verdict.margin = std::max(0.0, second->seconds_per_token / best.seconds_per_token - 1);
  verdict.runner_up = describe(second->choice);
  verdict.tie = within_bands(best, *second, kernel_error);
  if (verdict.tie) {
    suggest(cluster, best, verdict.tie_breaking_measurements);
    suggest(cluster, *second, verdict.tie_breaking_measurements);
    std::sort(verdict.tie_breaking_measurements.begin(), verdict.tie_breaking_measurements.end());
    verdict.tie_breaking_measurements.erase(
        std::unique(verdict.tie_breaking_measurements.begin(), verdict.tie_breaking_measurements.end()),
        verdict.tie_breaking_measurements.end());
  }
  verdict.sensitive_terms = sensitive_terms(ranked);
  return verdict;
}

namespace {

/// Of the tensors that attention exchanges.
DType type_of(const PlanCandidate& c) {
  return c.attention.empty() ? DType::bf16 : c.attention.front().plan.shape.dtype;
}

/// The candidate on another mesh that is first with a rate of the machine times `factor`; none: the best is.
const PlanCandidate* first_under(const PlanRequest& request, const PlanResult& result, const Doubt& doubt,
                                 double factor) {
  topology::Cluster cluster = *request.cluster;
  Calibration calibration = *request.calibration;
  doubt.scale(cluster, calibration, factor);
  PlanRequest varied = request;
  varied.cluster = &cluster;
  varied.calibration = &calibration;
  varied.progress = nullptr;
  StepPricer pricer(varied);
  const auto time = [&](const PlanCandidate& c) {
    return pricer.candidate(c.choice, pricer.attention(c.choice), {}, false).seconds_per_token;
  };
  const PlanCandidate& best = result.best();
  const double most = std::max(factor, 1 / factor);
  double least = time(best) * (1 - same_time);
  const PlanCandidate* first = nullptr;
  constexpr int most_priced = 12;
  int priced = 0;
  for (const PlanCandidate& c : result.candidates) {
    if (!c.fits || priced == most_priced) break;
    if (same_layout(c.choice, best.choice) && c.choice.method == best.choice.method) continue;
    if (c.seconds_per_token / most >= least) continue;
    ++priced;
    const double seconds = time(c);
    if (seconds >= least) continue;
    least = seconds;
    first = &c;
  }
  return first;
}

}  // namespace

void name_guesses(const PlanRequest& request, PlanResult& result) {
  Verdict& verdict = result.verdict;
  if (result.candidates.size() < 2) return;
  for (const Doubt& doubt : doubts_of(*request.cluster, *request.calibration))
    for (const double factor : {doubt.low, doubt.high}) {
      const PlanCandidate* first = first_under(request, result, doubt, factor);
      if (first == nullptr) continue;
      verdict.guesses.push_back({doubt.input, doubt.provenance, factor, describe(first->choice),
                                 measurement_of(doubt.of, *request.cluster, type_of(result.best()),
                                                result.best().choice.mesh, first->choice.mesh)});
      break;
    }
  if (verdict.guesses.empty()) return;
  verdict.tie = true;
  measure_first(verdict.guesses, verdict.tie_breaking_measurements);
}

}  // namespace usp
