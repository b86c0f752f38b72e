// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/step_score.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace usp {
namespace {

/// Sequences from this length on are the class "long context".
constexpr i64 long_tokens = 32768;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

StepMetrics measure(const StepScore& score, std::string name,
                    const std::function<bool(const StepRun&, const StepPrediction&)>& of) {
  StepMetrics m;
  m.name = std::move(name);
  std::vector<double> errors, sizes, bands, memory;
  double covered = 0;
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const StepPrediction& p = score.predictions[i];
    if (!p.why.empty() || !of(score.runs[i], p)) continue;
    if (score.runs[i].memory_gib && *score.runs[i].memory_gib > 0)
      memory.push_back(std::abs(p.memory_gib / *score.runs[i].memory_gib - 1));
    if (!p.measured_s) continue;
    errors.push_back(p.error());
    sizes.push_back(std::abs(p.error()));
    bands.push_back(p.band);
    const double ratio = p.tokens_s / *p.measured_s;
    covered += ratio <= 1 + p.band && ratio >= 1 / (1 + p.band) ? 1 : 0;
  }
  m.rows = static_cast<i64>(errors.size());
  m.memory_rows = static_cast<i64>(memory.size());
  m.coverage = errors.empty() ? 0 : covered / static_cast<double>(errors.size());
  m.bias = median(std::move(errors));
  m.median_error = median(std::move(sizes));
  m.half_width = median(std::move(bands));
  m.memory_error = median(std::move(memory));
  return m;
}

void add_classes(StepScore& score) {
  using Run = const StepRun&;
  using Prediction = const StepPrediction&;
  const auto add = [&](std::string name, const std::function<bool(Run, Prediction)>& of) {
    StepMetrics m = measure(score, std::move(name), of);
    if (m.rows + m.memory_rows > 0) score.classes.push_back(std::move(m));
  };
  add("all priced", [](Run, Prediction) { return true; });
  add("dense", [](Run r, Prediction) { return !r.expert || *r.expert <= 1; });
  add("experts", [](Run r, Prediction) { return r.expert && *r.expert > 1; });
  add("long context", [](Run r, Prediction) { return r.seq && *r.seq >= long_tokens; });
  add("pipeline", [](Run r, Prediction) { return r.pipeline && *r.pipeline > 1; });
  std::set<std::string> cards, sources;
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    if (!score.predictions[i].why.empty()) continue;
    cards.insert(score.predictions[i].card);
    sources.insert(score.runs[i].source());
  }
  for (const std::string& card : cards)
    add("card " + card, [&](Run, Prediction p) { return p.card == card; });
  for (const std::string& source : sources)
    add("source " + source, [&](Run r, Prediction) { return r.source() == source; });
  std::vector<double> medians;
  for (const std::string& source : sources) {
    StepMetrics m =
        measure(score, source, [&](Run r, Prediction p) { return p.gated && r.source() == source; });
    if (m.rows == 0) continue;
    medians.push_back(m.median_error);
    score.sources.push_back(std::move(m));
  }
  score.gated = measure(score, "all of them", [](Run, Prediction p) { return p.gated; });
  score.median_over_sources = median(std::move(medians));
}

}  // namespace

StepScore score_steps(std::vector<StepRun> runs, const std::string& file, WorkProgress* progress) {
  StepScore score;
  score.file = file;
  score.runs = std::move(runs);
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    tell(progress, static_cast<i64>(i), static_cast<i64>(score.runs.size()), "runs");
    score.predictions.push_back(predict_run(score.runs[i]));
    score.priced += score.predictions.back().why.empty() ? 1 : 0;
    score.infeasible += score.predictions.back().why.empty() && !score.predictions.back().fits ? 1 : 0;
  }
  add_classes(score);
  judge_left_out(score);
  score.notes = {
      "memory is that of a tiled loss; a run that holds the logits of all its tokens at once takes 10 B more "
      "for each "
      "of them and vocabulary entry",
      "no measurement of a table enters a prediction; which effects are modelled, and how wide their bands "
      "are, was "
      "decided with the shipped table of 571 runs in view, so that its errors and coverage are no test of "
      "unseen runs",
      "left out: one factor on all predictions and one widening of all bands, fitted to the other sources' "
      "rows, "
      "judge a source without a row of its own; no plan uses them",
      "predictions are of tuned kernels at the power that the table states; what a run loses to other "
      "kernels, "
      "uneven load, data loading or software is in its error"};
  return score;
}

}  // namespace usp
