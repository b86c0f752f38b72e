// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json_units.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace usp {
namespace {

int exponent_of(FieldUnit unit) {
  switch (unit) {
    case FieldUnit::si:
      return 0;
    case FieldUnit::gb_s:
      return 9;
    case FieldUnit::tflops:
      return 12;
    case FieldUnit::us:
      return -6;
  }
  throw InternalError("a unit has no exponent");
}

double move_point(double value, int digits) {
  if (digits == 0 || !std::isfinite(value)) return value;
  std::array<char, 40> text{};
  char* const limit = text.data() + text.size();
  char* end = std::to_chars(text.data(), limit, value, std::chars_format::scientific).ptr;
  char* const exponent_at = std::find(text.data(), end, 'e') + 1;
  int exponent = 0;
  std::from_chars(exponent_at + (*exponent_at == '+' ? 1 : 0), end, exponent);
  end = std::to_chars(exponent_at, limit, exponent + digits).ptr;
  double result = 0;
  if (std::from_chars(text.data(), end, result).ec != std::errc())
    return value * std::pow(10.0, digits);  // infinite, zero or denormal
  return result;
}

/// The double of a document that reads back as `value`, where one does: of more than 15 digits not all
/// survive.
double written_si(double value, FieldUnit unit) {
  const double si = to_si(value, unit);
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double near : {si, std::nextafter(si, -infinite), std::nextafter(si, infinite)})
    if (from_si(near, unit) == value) return near;
  return si;
}

}  // namespace

double from_si(double value, FieldUnit unit) {
  return move_point(value, -exponent_of(unit));
}

double to_si(double value, FieldUnit unit) {
  return move_point(value, exponent_of(unit));
}

Json si_json(double value, FieldUnit unit) {
  constexpr double exact_integers = 9007199254740992;  // 2^53
  const double si = written_si(value, unit);
  if (std::abs(si) < exact_integers && std::nearbyint(si) == si) return static_cast<std::int64_t>(si);
  return si;
}

Json si_json(const std::optional<double>& value, FieldUnit unit) {
  return value ? si_json(*value, unit) : Json(nullptr);
}

double read_si(ObjectReader& reader, const char* key, FieldUnit unit, double least, double most) {
  return from_si(reader.number(key, to_si(least, unit), to_si(most, unit)), unit);
}

double read_si(ObjectReader& reader, const char* key, FieldUnit unit, BoundedQuantity quantity, double most) {
  const double si = reader.number(key, 0, to_si(most, unit));
  const std::string fault = beyond_machines(si, quantity);
  if (!fault.empty()) reader.fail(key, fault);
  return from_si(si, unit);
}

std::optional<double> maybe_read_si(ObjectReader& reader, const char* key, FieldUnit unit, double least,
                                    double most) {
  if (reader.find(key) == nullptr) return std::nullopt;
  return read_si(reader, key, unit, least, most);
}

}  // namespace usp
