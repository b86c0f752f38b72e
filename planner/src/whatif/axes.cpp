// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/whatif.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <cmath>

namespace usp {
namespace {

constexpr const char* flag = "--sweep";
constexpr std::size_t max_values = 10000;
constexpr std::size_t max_steps = 1000000;  ///< of a range; many may round to one value, or add nothing to it

struct AxisName {
  const char* name;
  AxisKind kind;
  const char* unit;
  double min = 1, max = 1;  ///< of words: the parser's
};
constexpr double max_devices = 1 << 16;  // of a cluster
constexpr AxisName names[] = {
    {"seq", AxisKind::seq, "tokens", 1, max_tokens},
    {"batch", AxisKind::batch, "rows per replica", 1, max_batch},
    {"nic", AxisKind::nic, "GB/s per NIC, one direction", min_rate_gb_s, max_rate_gb_s},
    {"nvlink", AxisKind::nvlink, "GB/s per device, one direction", min_rate_gb_s, max_rate_gb_s},
    {"memory", AxisKind::memory, "bytes per device", 1, max_whole},
    {"nodes", AxisKind::nodes, "hosts", 1, max_devices},
    {"gpus", AxisKind::gpus, "devices", 1, max_devices},
    {"ring", AxisKind::ring, "", 1, max_degree},
    {"ulysses", AxisKind::ulysses, "", 1, max_degree},
    {"tensor", AxisKind::tensor, "", 1, max_ranks},
    {"zero", AxisKind::zero, "", 0, 3},
    {"heads", AxisKind::heads, "", 1, max_heads},
    {"kv_heads", AxisKind::kv_heads, "", 1, max_heads},
    {"layout", AxisKind::layout, ""},
    {"method", AxisKind::method, ""},
    {"recompute", AxisKind::recompute, ""}};

const AxisName& find_axis(const std::string& name) {
  std::vector<std::string> known;
  for (const AxisName& axis : names) {
    if (name == axis.name) return axis;
    known.emplace_back(axis.name);
  }
  const std::string near = nearest_name(name, known);
  throw UsageError(fmt::format(
      "{}: '{}' is no axis{}{}", flag, name,
      near.empty() ? "; known are " : fmt::format("; did you mean {}? Known are ", near), join(known, ", ")));
}

bool is_word(AxisKind kind) {
  return kind == AxisKind::layout || kind == AxisKind::method || kind == AxisKind::recompute;
}

/// A bare number is GB/s; anything else is a line rate with its unit.
double parse_rate(const std::string& text) {
  const bool bare = text.find_first_not_of("0123456789.") == std::string::npos;
  return bare ? parse_number(text, flag) : parse_line_rate_gb_s(text, flag);
}

double parse_value(AxisKind kind, const std::string& text) {
  switch (kind) {
    case AxisKind::seq:
      return static_cast<double>(parse_tokens(text, flag, max_tokens));
    case AxisKind::nic:
    case AxisKind::nvlink:
      return parse_rate(text);
    case AxisKind::memory:
      return static_cast<double>(parse_bytes(text, flag));
    case AxisKind::layout:
      return static_cast<double>(parse_word<LayoutKind>(text, flag));
    case AxisKind::method:
      return static_cast<double>(index_of(parse_word<Method>(text, flag)));
    case AxisKind::recompute:
      return static_cast<double>(parse_word<Recompute>(text, flag));
    default:
      return static_cast<double>(parse_integer(text, flag));
  }
}

/// "0.000001", "32767"
std::string plain(double value) {
  return format_fixed(value, value < 1 && value > 0 ? 6 : 0);
}

void check_value(AxisKind kind, double value, const std::string& text) {
  if (is_word(kind)) return;
  for (const AxisName& axis : names)
    if (axis.kind == kind && !(value >= axis.min && value <= axis.max))
      throw UsageError(fmt::format("{}: '{}' is out of range; {} is {} to {}{}", flag, text, axis.name,
                                   plain(axis.min), plain(axis.max),
                                   *axis.unit == 0 ? "" : std::string(" ") + axis.unit));
}

std::vector<double> range_values(AxisKind kind, const std::string& text,
                                 const std::vector<std::string>& parts) {
  if (parts.size() != 3 || is_word(kind) || parts[2].size() < 2 || (parts[2][0] != 'x' && parts[2][0] != '+'))
    throw UsageError(
        fmt::format("{}: '{}' is no range; write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP", flag, text));
  const double first = parse_value(kind, parts[0]), last = parse_value(kind, parts[1]);
  check_value(kind, first, parts[0]);
  check_value(kind, last, parts[1]);
  const bool factor = parts[2][0] == 'x';
  const double step = factor ? parse_number(parts[2].substr(1), flag) : parse_value(kind, parts[2].substr(1));
  if (last < first || !std::isfinite(step) || step <= (factor ? 1.0 : 0.0))
    throw UsageError(fmt::format(
        "{}: '{}' does not ascend; the last value is at least the first, a factor above 1, a step above 0",
        flag, text));
  const bool whole = kind != AxisKind::nic && kind != AxisKind::nvlink;
  std::vector<double> values;
  std::size_t steps = 0;
  for (double value = first; value <= last * (1 + 1e-9); value = factor ? value * step : value + step) {
    const double kept = whole ? std::round(value) : value;
    if (values.empty() || kept > values.back()) values.push_back(kept);
    if (values.size() > max_values || ++steps > max_steps)
      throw UsageError(fmt::format("{}: '{}' has too many values; take a larger step", flag, text));
  }
  return values;
}

}  // namespace

bool Axis::continuous() const {
  return kind == AxisKind::seq || kind == AxisKind::batch || kind == AxisKind::nic ||
         kind == AxisKind::nvlink || kind == AxisKind::memory;
}

AxisValue axis_value(AxisKind kind, double number) {
  switch (kind) {
    case AxisKind::seq:
      return {number, format_tokens(static_cast<i64>(number))};
    case AxisKind::nic:
    case AxisKind::nvlink: {
      std::string text = format_fixed(number, 2);
      while (text.back() == '0') text.pop_back();
      if (text.back() == '.') text.pop_back();
      return {number, text + " GB/s"};
    }
    case AxisKind::memory:
      return {number, format_bytes(number)};
    case AxisKind::layout:
      return {number, std::string(word_of(static_cast<LayoutKind>(number)))};
    case AxisKind::method:
      return {number, std::string(word_of(methods()[static_cast<std::size_t>(number)]))};
    case AxisKind::recompute:
      return {number, std::string(word_of(static_cast<Recompute>(number)))};
    default:
      return {number, std::to_string(static_cast<i64>(number))};
  }
}

Axis parse_axis(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos)
    throw UsageError(fmt::format("{}: '{}' names no values; write e.g. seq=128k:4m:x2", flag, text));
  std::string name = trim(text.substr(0, equals));
  for (char& c : name)
    if (c == '-') c = '_';
  const AxisName& known = find_axis(name);
  Axis axis{known.kind, known.name, known.unit, {}};
  for (const std::string& raw : split(text.substr(equals + 1), ',')) {
    const std::string part = trim(raw);
    const std::vector<std::string> range = split(part, ':');
    if (axis.values.size() > max_values)
      throw UsageError(fmt::format("{}: too many values of {}", flag, name));
    if (range.size() > 1) {
      for (double value : range_values(axis.kind, part, range))
        axis.values.push_back(axis_value(axis.kind, value));
      continue;
    }
    const double value = parse_value(axis.kind, part);
    check_value(axis.kind, value, part);
    axis.values.push_back(axis_value(axis.kind, value));
  }
  if (axis.values.size() > max_values) throw UsageError(fmt::format("{}: too many values of {}", flag, name));
  for (std::size_t i = 1; axis.continuous() && i < axis.values.size(); ++i)
    if (axis.values[i].number <= axis.values[i - 1].number)
      throw UsageError(fmt::format("{}: values of {} must ascend", flag, name));
  return axis;
}

}  // namespace usp
