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

std::string stacked(const Chart& chart, const std::vector<Bar>& bars) {
  double most = chart.limit;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const Part& part : bar.parts) sum += part.amount;
    most = std::max(most, sum);
  }
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
    if (chart.limit > 0)
      svg.line(scale.at(chart.limit), y + 16, scale.at(chart.limit), y + 20 + bar_height, "limit");
    y += row_height;
  }
  for (const double tick : scale.ticks()) {
    svg.line(scale.at(tick), y, scale.at(tick), y + 5, "axis");
    svg.text(scale.at(tick), y + 20, chart.print(tick), tick == 0 ? "" : "mid");
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
  for (const Bar& bar : bars) rows.back().push_back(bar.total);
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
    bar.total = fmt::format("{} \xC2\xB1{}", format_seconds(c.step_s), format_percent(c.band, 0));
    for (const TimeTerm& term : c.terms) bar.parts.push_back({term.name, term.seconds});
    return bar;
  });
  const Chart chart{"Step time of the best candidates",
                    "Stacked bars: seconds of one step by what they are spent on.", print_seconds, 0, ""};
  std::string text = fmt::format("<section id=\"time\"><h2>Step time</h2>\n{}{}", stacked(chart, bars),
                                 table("Step time by term", bars, print_seconds));
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
