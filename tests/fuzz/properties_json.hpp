// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/planner/model_config.hpp"
#include "usp/topology/cluster_io.hpp"

#include <string>

/// Properties of the readers of JSON, in the terms of properties.hpp.
namespace usp::fuzz {

/// What was read is written and read again without a change.
inline bool cluster_json(const std::string& text) {
  try {
    const std::string written = write_cluster_json(read_cluster_json(text, "input"));
    require(write_cluster_json(read_cluster_json(written, "written")) == written,
            "the round trip changes a cluster");
    return true;
  } catch (const InvalidInput& error) {
    require(error.where().file != "written", error.what());
    return false;
  }
}

inline bool model_config(const std::string& text) {
  try {
    const Model model = read_model_config(text, "input");
    require(!model.kinds.empty(), "a model without layers");
    require(!model_json(model).empty(), "a model that prints nothing");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

}  // namespace usp::fuzz
