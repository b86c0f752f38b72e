// SPDX-License-Identifier: Apache-2.0
#include "partial_file.hpp"

#include "usp/base/json_format.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::measure {
namespace {

constexpr const char* format_name = "usp.calibration_partial";
constexpr double most = 1e15;
constexpr const char* remedy = "give --restart to measure anew";

void check_settings(ObjectReader reader, const Settings& settings) {
  for (const auto& [name, value] : settings) {
    const std::string there = reader.string(name.c_str());
    if (there != value)
      reader.fail(name.c_str(),
                  fmt::format("the parts were measured with {} '{}', and this start has '{}': start as "
                              "then, or give --restart to measure anew",
                              name, there, value));
  }
  reader.finish();
}

/// Columns from the first on that are above zero.
std::size_t positive_columns(Part::Kind kind) {
  switch (kind) {
    case Part::Kind::kernel:
      return 5;
    case Part::Kind::product:
      return 4;
    case Part::Kind::interference:
      return 3;
    default:
      return 2;
  }
}

/// Only what a measurement gives: positive counts and times, sizes that rise, a known mask.
bool possible(const Part& part, const Rows& rows) {
  const Part::Kind kind = part.kind;
  const bool kernel = kind == Part::Kind::kernel, exchange = kind == Part::Kind::exchange;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double>& row = rows[i];
    if (std::any_of(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(positive_columns(kind)),
                    [](double x) { return x <= 0; }))
      return false;
    if (kernel && ((row[5] != 0 && row[5] != 1 && row[5] != 2) || row[6] <= 0)) return false;
    if (part.doubles() && i > 0 && row[0] != 2 * rows[i - 1][0]) return false;
    if (exchange && i > 0 && row[0] <= rows[i - 1][0]) return false;
  }
  return !rows.empty() && (!exchange || rows.size() > 1);
}

std::vector<double> read_row(const Json& value, const std::string& file, const std::string& pointer,
                             std::size_t columns) {
  if (!value.is_array() || value.size() != columns)
    throw InvalidInput({file, 0, pointer}, fmt::format("is no row of {} numbers; {}", columns, remedy));
  std::vector<double> row;
  for (const Json& number : value) row.push_back(json_number(number, file, pointer, 0, most));
  return row;
}

}  // namespace

std::string write_partial(const PartialFile& content) {
  Json json = json_header(format_name);
  json["settings"] = Json::object();
  for (const auto& [name, value] : content.settings) json["settings"][name] = value;
  json["parts"] = Json::array();
  for (const auto& [name, rows] : content.results) json["parts"].push_back({{"part", name}, {"rows", rows}});
  return json.dump() + "\n";
}

PartialFile read_partial(const std::string& text, const std::string& file, const Settings& settings,
                         const std::vector<Part>& parts) {
  const Json json = parse_json(text, file);
  ObjectReader top(json, file, "");
  check_json_header(top, format_name, remedy);
  PartialFile content{settings, {}};
  check_settings(top.object("settings"), settings);
  top.array("parts", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, file, pointer);
    const std::string name = reader.string("part");
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part& known) { return known.name() == name; });
    if (part == parts.end())
      reader.fail("part", fmt::format("'{}' is no measurement of this machine; {}", name, remedy));
    Rows rows;
    reader.array("rows", [&](const Json& row, const std::string& at) {
      rows.push_back(read_row(row, file, at, columns_of(part->kind)));
    });
    if (!possible(*part, rows))
      reader.fail("rows", fmt::format("hold what no measurement gives; {}", remedy));
    if (!content.results.emplace(name, std::move(rows)).second)
      reader.fail("part", fmt::format("is given twice; {}", remedy));
    reader.finish();
  });
  top.finish();
  return content;
}

}  // namespace usp::measure
