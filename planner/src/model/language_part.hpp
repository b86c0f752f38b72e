// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"

#include <string>
#include <vector>

/// Where a config.json keeps its language model. Private to the config reader.
namespace usp {

/// One object of a config: its place as a JSON pointer ("" is the whole) and the objects that lead to it.
struct LanguagePart {
  Json* object = nullptr;
  std::string pointer;
  std::vector<std::string> left_out;  ///< objects beside the way that hold models of their own
};

/// The object that holds the language model, in nests of any depth: behind text_config, thinker_config and
/// other such names, else the whole, else the only object that states sizes. Throws InvalidInput where two
/// objects could be meant.
[[nodiscard]] LanguagePart language_part(Json& config, const std::string& file);

/// Sets keys of the language part by "KEY=VALUE" (VALUE is JSON, else a string; null takes a key away).
/// Throws UsageError naming --model-key.
void set_model_keys(Json& config, const std::string& file, const std::vector<std::string>& settings);

}  // namespace usp
