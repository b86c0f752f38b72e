// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"

#include <string>
#include <vector>

namespace usp {

/// Reads a Hugging Face config.json. Keys that do not concern the planner are ignored, `null` is absent, the
/// language part of a multimodal config (text_config, language_config, thinker_config, ..., in nests of any
/// depth) is taken. What the architecture's code or its config class defines where the config is silent is
/// applied and listed in Model::derived. A family that is not known is read as a plain decoder whose
/// assumptions are listed there too; keys that speak of layers or of what a query sees and that are not
/// understood are refused. Anything else that is missing throws MissingValue naming the key, and
/// contradictions throw InvalidInput with the JSON pointer.
/// @param settings keys of the language part to set first, as "KEY=VALUE" (--model-key)
[[nodiscard]] Model read_model_config(const std::string& text, const std::string& file,
                                      const std::vector<std::string>& settings = {});

/// The model of a file, of stdin ("-"), or of a shipped preset (configs/models).
[[nodiscard]] Model load_model(const std::string& file_or_preset_name,
                               const std::vector<std::string>& settings = {});

/// The document that `usp model --json` prints (configs/schema/model.v2.schema.json).
[[nodiscard]] std::string model_json(const Model& model);

}  // namespace usp
