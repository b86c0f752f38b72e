// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"

#include <string>

namespace usp {

/// Reads a Hugging Face config.json. Keys that do not concern the planner are ignored, `null` is absent, the
/// language part of a multimodal config (text_config, language_config, llm_config) is taken. What the
/// architecture's code defines where the config is silent is applied and listed in Model::derived; anything
/// else that is missing throws MissingValue naming the key, and contradictions throw InvalidInput with the
/// JSON pointer.
[[nodiscard]] Model read_model_config(const std::string& text, const std::string& file);

/// The model of a file, of stdin ("-"), or of a shipped preset (configs/models).
[[nodiscard]] Model load_model(const std::string& file_or_preset_name);

/// The document that `usp model --json` prints (configs/schema/model.v2.schema.json).
[[nodiscard]] std::string model_json(const Model& model);

}  // namespace usp
