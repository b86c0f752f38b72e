// SPDX-License-Identifier: Apache-2.0
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

/// Largest message size of a sweep that covers `bytes`, for nccl-tests' -e.
std::string sweep_end(double bytes) {
  i64 mib = 1;
  while (static_cast<double>(mib << 20) < bytes) mib *= 2;
  return fmt::format("{}M", mib);
}

void suggest(const PlanCandidate& c, std::vector<std::string>& out) {
  const Choice& choice = c.choice;
  if (c.attention.empty()) return;
  const PassPrice& forward = c.attention.front().price.forward;
  const std::string ulysses = std::to_string(choice.mesh.ulysses);
  const bool spans_hosts = (forward.extrapolation & bits(Extrapolation::inter_node)) != 0;
  if (choice.mesh.ulysses > 1 && spans_hosts)
    out.push_back(fmt::format(
        "mpirun -n {} alltoall_perf -b 1M -e {} -f 2 -g 1 (nccl-tests with MPI, a process for each device "
        "of one ulysses group), then --curves",
        ulysses, sweep_end(forward.wire_bytes)));
  else if (choice.mesh.ulysses > 1)
    out.push_back(
        fmt::format("alltoall_perf -b 1M -e {} -f 2 -g {} (nccl-tests on the devices of one ulysses group), "
                    "then --curves",
                    sweep_end(forward.wire_bytes), ulysses));
  if (choice.mesh.ring() == 1) return;
  const std::string hop =
      fmt::format("sendrecv_perf -b 1M -e {} -f 2 ", sweep_end(forward.wire_bytes / choice.mesh.ring()));
  out.push_back(
      spans_hosts
          ? fmt::format("mpirun -n 2 --map-by node {}-g 1 (nccl-tests with MPI, on two neighbouring hosts)",
                        hop)
          : hop + "-g 2 (nccl-tests between ring neighbours), then --curves");
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

Verdict compare_best(const std::vector<PlanCandidate>& ranked, double kernel_error) {
  Verdict verdict;
  const PlanCandidate& best = ranked.front();
  const auto second = std::find_if(ranked.begin() + 1, ranked.end(), [&](const PlanCandidate& c) {
    return c.fits && !same_layout(c.choice, best.choice);
  });
  if (second == ranked.end()) return verdict;
  verdict.margin = second->seconds_per_token / best.seconds_per_token - 1;
  verdict.runner_up = describe(second->choice);
  verdict.tie = within_bands(best, *second, kernel_error);
  if (verdict.tie) {
    suggest(best, verdict.tie_breaking_measurements);
    suggest(*second, verdict.tie_breaking_measurements);
    std::sort(verdict.tie_breaking_measurements.begin(), verdict.tie_breaking_measurements.end());
    verdict.tie_breaking_measurements.erase(
        std::unique(verdict.tie_breaking_measurements.begin(), verdict.tie_breaking_measurements.end()),
        verdict.tie_breaking_measurements.end());
  }
  verdict.sensitive_terms = sensitive_terms(ranked);
  return verdict;
}

}  // namespace usp
