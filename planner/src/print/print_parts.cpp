// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"

#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace usp {
namespace {

constexpr std::size_t max_groups = 8;  ///< printed per axis
constexpr std::size_t max_reasons = 6;

/// The reason without its numbers: alike for all meshes that fail the same rule.
std::string rule_of(const std::string& reason) {
  std::string rule;
  for (const char c : reason)
    if (c < '0' || c > '9') rule += c;
  return rule;
}

std::string mesh_of(const Rejection& r) {
  std::string text = fmt::format("({}, {})", r.ring, r.ulysses);
  if (r.tensor > 1) text += fmt::format(" tensor {}", r.tensor);
  if (r.data > 1) text += fmt::format(" data {}", r.data);
  return text;
}

}  // namespace

std::string time_text(double seconds, double band, bool calibrated) {
  return fmt::format("{} +-{}{}", format_seconds(seconds), format_percent(band, 0),
                     calibrated ? "" : " (uncalibrated)");
}

std::string time_header(const std::string& name, bool calibrated) {
  return calibrated ? name : name + " (uncalibrated)";
}

std::string where_text(const std::vector<AxisView>& axes) {
  TextTable table;
  for (const char* name : {"axis", "ranks", "where", "transport"})
    table.column(name, std::string(name) == "ranks" ? TextTable::Align::right : TextTable::Align::left);
  for (const AxisView& axis : axes)
    table.row({axis.name, std::to_string(axis.degree), axis.where, std::string(word_of(axis.transport))});
  return axes.empty() ? "" : "\nhow it lies on the machine\n" + table.str(2);
}

std::string groups_text(const std::vector<AxisView>& axes) {
  std::string text;
  for (const AxisView& axis : axes) {
    text += fmt::format("  {} groups:", axis.name);
    for (std::size_t i = 0; i < axis.groups.size() && i < max_groups; ++i)
      text += (i == 0 ? " " : ", ") + rank_list(axis.groups[i]);
    if (axis.groups.size() > max_groups)
      text += fmt::format(", and {} more", axis.groups.size() - max_groups);
    text += "\n";
  }
  return text.empty() ? "" : "\nto launch it (world ranks)\n" + text;
}

std::string gated_text(bool gated, int phases) {
  if (!gated) return "";
  return phases == 1 ? ", gated" : fmt::format(", gated in {} phases", phases);
}

std::string rejected_text(const std::vector<Rejection>& rejected) {
  if (rejected.empty()) return "";
  struct Group {
    std::size_t count = 0;
    const Rejection* example = nullptr;
  };
  std::map<std::string, Group> by_rule;
  for (const Rejection& r : rejected) {
    Group& group = by_rule[rule_of(r.reason)];
    ++group.count;
    if (group.example == nullptr) group.example = &r;
  }
  std::vector<Group> groups;
  for (const auto& [rule, group] : by_rule) groups.push_back(group);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.count > b.count; });
  std::string text = fmt::format("\nrefused: {} {}, shown as (ring, ulysses)\n", rejected.size(),
                                 rejected.size() == 1 ? "mesh" : "meshes");
  for (std::size_t i = 0; i < groups.size() && i < max_reasons; ++i)
    text += fmt::format("  {} x  {}: {}\n", groups[i].count, mesh_of(*groups[i].example),
                        groups[i].example->reason);
  if (groups.size() > max_reasons)
    text +=
        fmt::format("  and {} (--json lists all)\n", counted(groups.size() - max_reasons, "other reason"));
  return text;
}

std::string list_text(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const std::string& line : lines) text += fmt::format("  - {}\n", line);
  return text;
}

std::string guesses_text(const std::vector<GuessedInput>& guesses) {
  std::vector<std::string> lines;
  for (const GuessedInput& guess : guesses)
    lines.push_back(fmt::format("{} ({}): at {} of the assumed rate '{}' is first", guess.input,
                                guess.provenance, format_percent(guess.factor, 0), guess.first));
  return list_text("a tie: unmeasured inputs decide the first place", lines);
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return format_fixed(per_second / 1e6, 2) + "M";
  if (per_second >= 1e3) return format_fixed(per_second / 1e3, 1) + "K";
  return format_fixed(per_second, per_second < 10 ? 2 : 0);
}

}  // namespace usp
