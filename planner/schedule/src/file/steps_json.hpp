// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/step_backends.hpp"

namespace usp {

/// Counted steps as plan files and results of planning hold them; null: not counted.
[[nodiscard]] inline Json steps_json(const std::optional<schedule::StepBackends>& steps) {
  if (!steps) return nullptr;
  Json why = Json::array();
  for (const schedule::UnsupportedReason each : steps->why) why.push_back(word_of(each));
  Json json = Json::object();
  for (const Backend backend : backends()) json[std::string(word_of(backend))] = steps->of(backend);
  json["mixed"] = steps->mixed;
  json["why"] = std::move(why);
  return json;
}

}  // namespace usp
