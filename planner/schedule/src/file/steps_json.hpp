// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/step_backends.hpp"

namespace usp {

/// Plan files of version 2 hold the counts of the backends that there were at first also where they are 0. A
/// newer one is left out then, so that older files keep their digest.
[[nodiscard]] inline bool counted_at_zero(Backend backend) {
  constexpr std::size_t first_backends = 3;
  return index_of(backend) < first_backends;
}

/// Counted steps as plan files and results of planning hold them; null: not counted.
[[nodiscard]] inline Json steps_json(const std::optional<schedule::StepBackends>& steps) {
  if (!steps) return nullptr;
  Json why = Json::array();
  for (const schedule::UnsupportedReason each : steps->why) why.push_back(word_of(each));
  Json json = Json::object();
  for (const Backend backend : backends())
    if (counted_at_zero(backend) || steps->of(backend) > 0)
      json[std::string(word_of(backend))] = steps->of(backend);
  json["mixed"] = steps->mixed;
  json["why"] = std::move(why);
  return json;
}

}  // namespace usp
