// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

std::string problem_of(const std::string& text) {
  try {
    static_cast<void>(parse_json(text, "f"));
  } catch (const InvalidInput& error) {
    return error.problem();
  }
  return "no error";
}

std::string object_of(int keys) {
  std::string text = "{";
  for (int i = 0; i < keys; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  return text + "}";
}

TEST(JsonLimits, ANulByteDoesNotEndTheText) {
  EXPECT_NE(problem_of(std::string("{}\0", 3)).find("NUL"), std::string::npos);
  EXPECT_NE(problem_of(std::string("{}\0{", 4)).find("NUL"), std::string::npos);
  EXPECT_EQ(problem_of("{}\n"), "no error");
}

/// A key is sought among all that stand before it, so that time grows with the square of their number.
TEST(JsonLimits, ObjectsOfTooManyKeysAreRefused) {
  EXPECT_EQ(problem_of(object_of(5000)), "no error");
  EXPECT_NE(problem_of(object_of(40000)).find("keys"), std::string::npos);
  std::string many = "[" + object_of(9000);
  for (int i = 0; i < 14; ++i) many += "," + object_of(9000);
  EXPECT_NE(problem_of(many + "]").find("keys"), std::string::npos);
}

TEST(JsonLimits, TooManyValuesAreRefused) {
  std::string text = "[0";
  for (int i = 0; i < (1 << 22); ++i) text += ",0";
  EXPECT_NE(problem_of(text + "]").find("more than 4,194,304 values"), std::string::npos);
}

/// Each object must not make the parser look at all before it: this would take an hour.
TEST(JsonLimits, ALongListOfObjectsIsReadInOnePass) {
  std::string text = "[{}";
  for (int i = 0; i < 1000000; ++i) text += ",{}";
  EXPECT_EQ(parse_json(text + "]", "f").size(), 1000001U);
}

TEST(JsonLimits, NestingIsBounded) {
  EXPECT_EQ(problem_of(std::string(64, '[') + "0" + std::string(64, ']')), "no error");
  EXPECT_NE(problem_of(std::string(65, '[') + "0" + std::string(65, ']')).find("64 levels"),
            std::string::npos);
  EXPECT_NE(problem_of(std::string(200000, '[')).find("64 levels"), std::string::npos);
}

TEST(JsonLimits, LinesAreCountedWithoutAList) {
  std::string seen;
  for_each_line("a\r\n\nb\n", [&](long number, std::string_view line) {
    seen += std::to_string(number) + std::string(line) + ";";
  });
  EXPECT_EQ(seen, "1a;2;3b;");
  for_each_line("", [&](long, std::string_view) { seen = "a line of an empty text"; });
  for_each_line(
      "\nx", [&](long number, std::string_view line) { seen += std::to_string(number) + std::string(line); });
  EXPECT_EQ(seen, "1a;2;3b;12x");
}

TEST(Units, ARateStaysFiniteInItsUnit) {
  EXPECT_EQ(parse_line_rate_gb_s("400G", "--nic"), 50);
  EXPECT_THROW(static_cast<void>(parse_line_rate_gb_s("1e308TB/s", "--nic")), UsageError);
}

}  // namespace
}  // namespace usp
