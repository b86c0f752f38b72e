// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr std::size_t max_bars = 6;
constexpr double gib = 1024.0 * 1024 * 1024;
constexpr double width = 860, left = 10, bar_height = 22, row_height = 52;

struct Part {
  std::string name;
  double amount = 0;
};
struct Bar {
  std::string label, total;
  std::vector<Part> parts;
  double band = 0;  ///< relative half width of the sum: a whisker; 0: none
  [[nodiscard]] double sum() const {
    double amount = 0;
    for (const Part& part : parts) amount += part.amount;
    return amount;
  }
};

std::size_t index_of(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

std::string legend(const std::vector<std::string>& names) {
  std::string text = "<ul class=\"legend\">";
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("<li><span class=\"swatch {}\"></span>{}</li>", colour(i), escaped(names[i]));
  return text + "</ul>\n";
}

struct Chart {
  std::string title, description;
  std::string (*print)(double);
  double limit = 0;  ///< a line beside every bar; 0: none
  std::string limit_label;
  double unit = 1;  ///< of round ticks
};

/// From sum / (1 + band) to sum * (1 + band): where the truth is expected.
void whisker(Svg& svg, const Scale& scale, double sum, double band, double y) {
  constexpr double cap = 5;
  const double low = scale.at(sum / (1 + band)), high = scale.at(sum * (1 + band));
  svg.line(low, y, high, y, "whisker");
  for (const double x : {low, high}) svg.line(x, y - cap, x, y + cap, "whisker");
}

std::string stacked(const Chart& chart, const std::vector<Bar>& bars) {
  double most = chart.limit;
  for (const Bar& bar : bars) most = std::max(most, bar.sum() * (1 + bar.band));
  const double height = row_height * static_cast<double>(bars.size()) + 44;
  const Scale scale{0, most, left, width - 20, chart.unit};
  Svg svg(width, height, chart.title, chart.description);
  std::vector<std::string> names;
  double y = 4;
  for (const Bar& bar : bars) {
    svg.text(left, y + 12, bar.label, "strong");
    svg.text(width - 20, y + 12, bar.total, "end");
    double sum = 0;
    for (const Part& part : bar.parts) {
      const double x = scale.at(sum), next = scale.at(sum + part.amount);
      svg.rect(x, y + 18, next - x, bar_height, colour(index_of(names, part.name)) + " part",
               fmt::format("{}: {}", part.name, chart.print(part.amount)));
      sum += part.amount;
    }
    if (bar.band > 0) whisker(svg, scale, sum, bar.band, y + 18 + bar_height / 2);
    if (chart.limit > 0)
      svg.line(scale.at(chart.limit), y + 16, scale.at(chart.limit), y + 20 + bar_height, "limit");
    y += row_height;
  }
  for (const double tick : scale.ticks()) {
    svg.line(scale.at(tick), y, scale.at(tick), y + 5, "axis");
    const bool last = scale.at(tick) > width - 60;  // its label would be cut
    svg.text(scale.at(tick), y + 20, chart.print(tick), tick == 0 ? "" : last ? "end" : "mid");
  }
  svg.line(left, y, width - 20, y, "axis");
  if (chart.limit > 0) {
    svg.text(scale.at(chart.limit), y + 36, chart.limit_label, "end strong");
  }
  return svg.str() + legend(names);
}

std::string table(const std::string& caption, const std::vector<Bar>& bars, std::string (*print)(double)) {
  std::vector<std::string> names;
  for (const Bar& bar : bars)
    for (const Part& part : bar.parts) index_of(names, part.name);
  std::vector<std::vector<std::string>> rows = {{"part"}};
  for (std::size_t i = 0; i < bars.size(); ++i) rows[0].push_back(fmt::format("#{}", i + 1));
  for (const std::string& name : names) {
    rows.push_back({name});
    for (const Bar& bar : bars) {
      double amount = 0;
      for (const Part& part : bar.parts) amount += part.name == name ? part.amount : 0;
      rows.back().push_back(amount > 0 ? print(amount) : "-");
    }
  }
  rows.push_back({"total"});
  for (const Bar& bar : bars) rows.back().push_back(print(bar.sum()));
  return html_table(caption, rows, 1);
}

/// The best candidates, one per mesh; the table numbers them as the candidates' table does.
template <class Parts>
std::vector<Bar> bars_of(const PlanResult& plan, const Parts& parts) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < plan.candidates.size() && i < max_bars; ++i) {
    const PlanCandidate& c = plan.candidates[i];
    Bar bar = parts(c);
    bar.label = fmt::format("#{}  {}{}", i + 1, short_choice(c.choice), c.fits ? "" : " (does not fit)");
    bars.push_back(std::move(bar));
  }
  return bars;
}

std::string print_bytes(double bytes) {
  return format_bytes(bytes);
}
std::string print_seconds(double seconds) {
  return seconds == 0 ? "0" : format_seconds(seconds);
}

}  // namespace

std::string time_section(const ReportInput& input) {
  const std::vector<Bar> bars = bars_of(*input.plan, [](const PlanCandidate& c) {
    Bar bar;
    const double share = c.seconds_per_token / c.step_s;  // steps differ in tokens: replicas are free
    bar.total = fmt::format("{} \xC2\xB1{}, step {}", format_seconds(c.seconds_per_token),
                            format_percent(c.band, 0), format_seconds(c.step_s));
    bar.band = c.band;
    for (const TimeTerm& term : c.terms) bar.parts.push_back({term.name, term.seconds * share});
    return bar;
  });
  const Chart chart{
      "Time per token of the best candidates",
      "Stacked bars: time of one step over its tokens, by what it is spent on; whiskers: where the "
      "truth is expected.",
      print_seconds, 0, ""};
  std::string text = fmt::format("<section id=\"time\"><h2>Time per token</h2>\n{}{}", stacked(chart, bars),
                                 table("Time per token by term", bars, print_seconds));
  std::vector<std::vector<std::string>> reasons = {
      {"term of the best", "how it comes about", "time", "band"}};
  for (const TimeTerm& term : input.plan->best().terms)
    reasons.push_back(
        {term.name, term.reason, format_seconds(term.seconds), "\xC2\xB1" + format_percent(term.band, 0)});
  return fmt::format("{}{}</section>\n", text, html_table("Terms of the best candidate", reasons, 2));
}

std::string memory_section(const ReportInput& input) {
  const double card = card_bytes(*input.request);
  const std::vector<Bar> bars = bars_of(*input.plan, [](const PlanCandidate& c) {
    Bar bar;
    bar.total = format_bytes(static_cast<double>(c.memory.total_bytes));
    for (const MemoryRow& row : c.memory.rows)
      if (row.bytes > 0) bar.parts.push_back({row.name, static_cast<double>(row.bytes)});
    return bar;
  });
  const Chart chart{"Memory of one rank",
                    "Stacked bars: bytes on the fullest rank by what holds them, against the card's memory.",
                    print_bytes,
                    card,
                    "the card: " + format_bytes(card),
                    gib};
  std::string text = fmt::format("<section id=\"memory\"><h2>Memory</h2>\n{}{}", stacked(chart, bars),
                                 table("Memory by row", bars, print_bytes));
  std::vector<std::vector<std::string>> rows = {{"row of the best", "how it comes about", "bytes"}};
  for (const MemoryRow& row : input.plan->best().memory.rows)
    rows.push_back({row.name, row.reason, format_bytes(static_cast<double>(row.bytes))});
  for (const MemoryRow& row : input.plan->best().memory.host_rows)
    rows.push_back({row.name + " (host)", row.reason, format_bytes(static_cast<double>(row.bytes))});
  return fmt::format("{}{}</section>\n", text, html_table("Rows of the best candidate", rows, 2));
}

}  // namespace usp
