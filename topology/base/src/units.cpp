// SPDX-License-Identifier: Apache-2.0
#include "usp/base/units.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace usp {
namespace {

[[noreturn]] void refuse(std::string_view flag, std::string_view text, const char* wanted) {
  throw UsageError(fmt::format("{}: '{}' is not {}", flag, text, wanted));
}

/// Splits "1.5M" into 1.5 and "M".
std::pair<double, std::string> number_and_unit(std::string_view text, std::string_view flag,
                                               const char* wanted) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) refuse(flag, text, wanted);
  return {value, trim(std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end)))};
}

std::int64_t whole(double value, std::string_view text, std::string_view flag, const char* wanted,
                   std::int64_t most = max_whole) {
  if (value > static_cast<double>(most))
    throw UsageError(fmt::format("{}: '{}' is too large; the most is {}", flag, text, most));
  if (value < 0 || std::nearbyint(value) != value) refuse(flag, text, wanted);
  return static_cast<std::int64_t>(value);
}

/// 1000 s and more: two units of a clock.
std::string clock_text(double seconds) {
  const auto whole_s = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = whole_s / 60, hours = minutes / 60, days = hours / 24;
  if (hours == 0) return fmt::format("{}m {}s", minutes, whole_s % 60);
  if (days == 0) return fmt::format("{}h {}m", hours, minutes % 60);
  return fmt::format("{}d {}h", days, hours % 24);
}

}  // namespace

std::int64_t parse_tokens(std::string_view text, std::string_view flag, std::int64_t most) {
  constexpr const char* wanted = "a token count (4096, 128k or 1M)";
  auto [value, unit] = number_and_unit(text, flag, wanted);
  if (unit == "k" || unit == "K")
    value *= 1024;
  else if (unit == "m" || unit == "M")
    value *= 1024.0 * 1024;
  else if (!unit.empty())
    refuse(flag, text, wanted);
  const std::int64_t tokens = whole(value, text, flag, wanted, most);
  if (tokens < 1) refuse(flag, text, wanted);
  return tokens;
}

std::int64_t parse_bytes(std::string_view text, std::string_view flag) {
  constexpr const char* wanted = "a size in bytes (80GB, 80GiB, 512MiB)";
  constexpr std::pair<const char*, double> units[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const auto [value, unit] = number_and_unit(text, flag, wanted);
  for (const auto& [name, factor] : units)
    if (unit == name) return whole(std::nearbyint(value * factor), text, flag, wanted);
  refuse(flag, text, wanted);
}

double parse_line_rate_gb_s(std::string_view text, std::string_view flag) {
  constexpr const char* wanted = "a line rate (400G for gigabits, 50GB/s for gigabytes)";
  constexpr std::pair<const char*, double> units[] = {
      {"G", 0.125}, {"Gb", 0.125}, {"Gb/s", 0.125}, {"Gbps", 0.125}, {"Gbit", 0.125}, {"Gbit/s", 0.125},
      {"T", 125},   {"Tb/s", 125}, {"GB/s", 1},     {"GB", 1},       {"TB/s", 1000},  {"GiB/s", 1.073741824}};
  const auto [value, unit] = number_and_unit(text, flag, wanted);
  if (value <= 0) refuse(flag, text, wanted);
  for (const auto& [name, factor] : units)
    if (unit == name) {
      const double gb_s = value * factor;
      if (gb_s >= min_rate_gb_s && gb_s <= max_rate_gb_s) return gb_s;
      throw UsageError(fmt::format("{}: '{}' is out of range; a rate is 1e-3 to 1e9 GB/s", flag, text));
    }
  refuse(flag, text, wanted);
}

std::string beyond_machines(double si, BoundedQuantity quantity) {
  struct Bound {
    BoundedQuantity quantity;
    double least, most;
    const char *unit, *example;
  };
  constexpr double any = std::numeric_limits<double>::infinity();
  constexpr Bound bounds[] = {
      {BoundedQuantity::byte_rate, min_rate_gb_s * 1e9, any, "bytes per second", "450 GB/s is 450000000000"},
      {BoundedQuantity::flop_rate, 1e9, any, "FLOP per second", "989 TFLOP/s is 989000000000000"},
      {BoundedQuantity::memory_bytes, 0x1p20, any, "bytes", "80 GiB is 85899345920"},
      {BoundedQuantity::latency_s, 0, 1, "seconds", "2 us is 0.000002"}};
  for (const Bound& bound : bounds)
    if (bound.quantity == quantity && !(si >= bound.least && si <= bound.most))
      return fmt::format("{} {} is {} than a machine may have ({} {:.0f}); values are in SI units: {}, {}",
                         si, bound.unit, si < bound.least ? "less" : "more",
                         si < bound.least ? "at least" : "at most",
                         si < bound.least ? bound.least : bound.most, bound.unit, bound.example);
  return "";
}

std::string format_bytes(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, units[unit]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 999.5 && size < 1e12) return (seconds < 0 ? "-" : "") + clock_text(size);
  if (size >= 1) return fmt::format("{:.3g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string format_flop_rate(double flop_s) {
  constexpr std::pair<double, const char*> units[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}};
  for (const auto& [unit, name] : units)
    if (std::abs(flop_s) >= 0.9995 * unit) return fmt::format("{:.3g} {}FLOP/s", flop_s / unit, name);
  return fmt::format("{:.3g} FLOP/s", flop_s);
}

std::string format_byte_rate(double bytes_s, int digits) {
  if (bytes_s >= 0.9995e9) return format_fixed(bytes_s / 1e9, digits) + " GB/s";
  return fmt::format("{:.3g} MB/s", bytes_s / 1e6);
}

std::string format_count(std::int64_t count) {
  constexpr std::pair<double, const char*> units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}};
  const auto size = static_cast<double>(count);
  for (const auto& [unit, name] : units)
    if (size >= unit) {
      const double value = size / unit;
      return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, name);
    }
  return std::to_string(count);
}

std::string format_tokens(std::int64_t tokens) {
  if (tokens >= (1 << 20) && tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  if (tokens >= 1024 && tokens % 1024 == 0) return fmt::format("{}K", tokens >> 10);
  return std::to_string(tokens);
}

std::string format_fixed(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", value, digits);
  // What rounds to zero has no sign.
  if (text.front() == '-' && text.find_first_of("123456789infa") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string format_percent(double fraction, int digits) {
  return format_fixed(100 * fraction, digits) + "%";
}

std::int64_t parse_integer(std::string_view text, std::string_view flag) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(flag, text, "an integer");
  return value;
}

double parse_number(std::string_view text, std::string_view flag) {
  const auto [value, unit] = number_and_unit(text, flag, "a number");
  if (!unit.empty()) refuse(flag, text, "a number");
  return value;
}

}  // namespace usp
