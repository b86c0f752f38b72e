// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/base/units.hpp"

/// Documents hold SI base units and bytes (json_format.hpp); fields of C++ hold the unit of their name. The
/// one place that converts. Include only from .cpp files.
namespace usp {

/// Unit of a field of C++.
enum class FieldUnit {
  si,      ///< as in documents
  gb_s,    ///< 1e9 bytes per second
  tflops,  ///< 1e12 FLOP per second
  us,      ///< 1e-6 seconds
};

/// Moves the decimal point of the shortest decimal form, so that a value of at most 15 digits converts
/// without rounding in both directions: 23700000000 bytes per second are the double 23.7 in GB/s.
[[nodiscard]] double from_si(double value, FieldUnit unit);
[[nodiscard]] double to_si(double value, FieldUnit unit);

/// A value of a document; an integer where it is one.
[[nodiscard]] Json si_json(double value, FieldUnit unit);
[[nodiscard]] Json si_json(const std::optional<double>& value, FieldUnit unit);

/// Reads a number of a document into a field. @param least, most in the unit of the field
[[nodiscard]] double read_si(ObjectReader& reader, const char* key, FieldUnit unit, double least,
                             double most);
/// Refuses values beyond the bound of the quantity too.
[[nodiscard]] double read_si(ObjectReader& reader, const char* key, FieldUnit unit, BoundedQuantity quantity,
                             double most);
[[nodiscard]] std::optional<double> maybe_read_si(ObjectReader& reader, const char* key, FieldUnit unit,
                                                  double least, double most);

}  // namespace usp
