// SPDX-License-Identifier: Apache-2.0
// Damaged configs give a model or InvalidInput, never anything else.
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/model_config.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

namespace usp {
namespace {

std::vector<std::string> config_texts() {
  std::vector<std::string> paths, texts;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(USP_TEST_DATA) + "/hf_config"))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) texts.push_back(read_file(path));
  return texts;
}

struct Tally {
  int models = 0;
  int refusals = 0;
};

void read_one(const std::string& text, Tally& tally) {
  try {
    const Json j = parse_json(model_json(read_model_config(text, "mutant.json")), "result");
    ++tally.models;
    ASSERT_TRUE(j.contains("layer_kinds"));
  } catch (const InvalidInput&) {
    ++tally.refusals;
  } catch (const std::exception& error) {
    FAIL() << error.what() << "\n" << text;
  }
}

std::string damaged(std::string text, std::mt19937_64& random) {
  for (std::uint64_t edits = 1 + random() % 4; edits > 0 && !text.empty(); --edits) {
    const std::size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text.erase(at, 1 + random() % 40);
        break;
      case 2:
        text[at] = static_cast<char>(random() % 256);
        break;
      case 3:
        text.insert(at, std::to_string(random()));
        break;
      default:
        text.insert(at, text.substr(random() % text.size(), random() % 60));
    }
  }
  return text;
}

void replace_values(Json& j, std::mt19937_64& random) {
  static const std::vector<std::string> values = {"null",
                                                  "0",
                                                  "-1",
                                                  "1",
                                                  "3",
                                                  "9223372036854775807",
                                                  "18446744073709551615",
                                                  "1e300",
                                                  "2.5",
                                                  "true",
                                                  "\"\"",
                                                  "[]",
                                                  "{}",
                                                  "[1,2]",
                                                  "16777216",
                                                  "[null]"};
  for (auto& value : j) {
    if (value.is_object() && random() % 4 != 0)
      replace_values(value, random);
    else if (value.is_array() && !value.empty() && random() % 2 == 0)
      value.erase(random() % value.size());
    else if (random() % 12 == 0)
      value = Json::parse(values[random() % values.size()]);
  }
}

TEST(ModelMutation, BytesAreDamaged) {
  std::mt19937_64 random(20240501);
  Tally tally;
  for (const auto& text : config_texts())
    for (int i = 0; i < 200; ++i) read_one(damaged(text, random), tally);
  EXPECT_GT(tally.models, 50);
  EXPECT_GT(tally.refusals, 1000);
}

TEST(ModelMutation, ValuesAreReplaced) {
  std::mt19937_64 random(7);
  Tally tally;
  for (const auto& text : config_texts())
    for (int i = 0; i < 200; ++i) {
      Json j = parse_json(text, "config");
      replace_values(j, random);
      read_one(j.dump(), tally);
    }
  EXPECT_GT(tally.models, 50);
  EXPECT_GT(tally.refusals, 500);
}

}  // namespace
}  // namespace usp
