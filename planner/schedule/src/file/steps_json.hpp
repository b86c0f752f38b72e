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
  return {{"cpu", steps->cpu},
          {"mma", steps->mma},
          {"cudnn", steps->cudnn},
          {"mixed", steps->mixed},
          {"why", std::move(why)}};
}

}  // namespace usp
