// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json_units.hpp"

#include "usp/base/units.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace usp {
namespace {

TEST(JsonUnits, DecimalValuesConvertExactly) {
  EXPECT_EQ(si_json(23.7, FieldUnit::gb_s).dump(), "23700000000");
  EXPECT_EQ(from_si(23700000000, FieldUnit::gb_s), 23.7);
  EXPECT_EQ(si_json(19.5, FieldUnit::tflops).dump(), "19500000000000");
  EXPECT_EQ(from_si(19500000000000, FieldUnit::tflops), 19.5);
  EXPECT_EQ(from_si(6.49e-6, FieldUnit::us), 6.49);
  EXPECT_EQ(to_si(6.49, FieldUnit::us), 6.49e-6);
  EXPECT_EQ(si_json(85899345920.0, FieldUnit::si).dump(), "85899345920");
  EXPECT_EQ(si_json(0.25, FieldUnit::si).dump(), "0.25");
  EXPECT_EQ(si_json(std::optional<double>(), FieldUnit::gb_s), nullptr);
  EXPECT_EQ(si_json(0.0, FieldUnit::us).dump(), "0");
}

TEST(JsonUnits, ValuesBeyondMachinesNameTheUnit) {
  EXPECT_EQ(beyond_machines(1e6, BoundedQuantity::byte_rate), "");
  EXPECT_EQ(beyond_machines(1e9, BoundedQuantity::flop_rate), "");
  EXPECT_EQ(beyond_machines(0x1p20, BoundedQuantity::memory_bytes), "");
  EXPECT_EQ(beyond_machines(1, BoundedQuantity::latency_s), "");
  EXPECT_EQ(
      beyond_machines(450, BoundedQuantity::byte_rate),
      "450 bytes per second is less than a machine may have (at least 1000000); values are in SI units: "
      "bytes per second, 450 GB/s is 450000000000");
  EXPECT_NE(beyond_machines(989, BoundedQuantity::flop_rate).find("FLOP per second"), std::string::npos);
  EXPECT_NE(beyond_machines(80, BoundedQuantity::memory_bytes).find("at least 1048576"), std::string::npos);
  EXPECT_NE(beyond_machines(2, BoundedQuantity::latency_s).find("more than"), std::string::npos);
  EXPECT_NE(beyond_machines(std::nan(""), BoundedQuantity::byte_rate), "");
}

TEST(JsonUnits, FifteenDigitsSurviveBothDirections) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::int64_t> digits(1, 999999999999999);
  std::uniform_int_distribution<int> exponent(-20, 5);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::stod(std::to_string(digits(random)) + "e" + std::to_string(exponent(random)));
    for (const FieldUnit unit : {FieldUnit::gb_s, FieldUnit::tflops, FieldUnit::us}) {
      EXPECT_EQ(from_si(si_json(value, unit).get<double>(), unit), value) << value;
      EXPECT_EQ(to_si(from_si(value, unit), unit), value) << value;
    }
  }
}

TEST(JsonUnits, ASecondRoundTripChangesNothing) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> any(1e-3, 1e4);
  for (int i = 0; i < 20000; ++i) {
    const double value = any(random);
    const double once = from_si(si_json(value, FieldUnit::gb_s).get<double>(), FieldUnit::gb_s);
    EXPECT_NEAR(once, value, 1e-15 * value);
    EXPECT_EQ(from_si(si_json(once, FieldUnit::gb_s).get<double>(), FieldUnit::gb_s), once);
  }
}

TEST(JsonUnits, EndsOfTheRange) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_si(infinite, FieldUnit::gb_s), infinite);
  EXPECT_EQ(to_si(std::numeric_limits<double>::max(), FieldUnit::gb_s), infinite);
  EXPECT_EQ(from_si(-1500, FieldUnit::gb_s), -1.5e-6);
  EXPECT_TRUE(std::isnan(from_si(std::nan(""), FieldUnit::gb_s)));
}

TEST(JsonUnits, RangesAreInTheUnitOfTheField) {
  const Json json = {{"bytes_per_s", 2500000000}};
  ObjectReader reader(json, "f", "");
  EXPECT_EQ(read_si(reader, "bytes_per_s", FieldUnit::gb_s, 0, 2.5), 2.5);
  EXPECT_THROW((void)read_si(reader, "bytes_per_s", FieldUnit::gb_s, 0, 2.4), InvalidInput);
  EXPECT_EQ(maybe_read_si(reader, "absent", FieldUnit::gb_s, 0, 1), std::nullopt);
}

TEST(Units, WhatRoundsToZeroHasNoSign) {
  EXPECT_EQ(format_percent(-0.0004), "0.0%");
  EXPECT_EQ(format_fixed(-0.4, 0), "0");
  EXPECT_EQ(format_percent(-0.0006), "-0.1%");
  EXPECT_EQ(format_fixed(-std::numeric_limits<double>::infinity(), 1), "-inf");
}

}  // namespace
}  // namespace usp
