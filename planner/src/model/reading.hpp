// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config_keys.hpp"
#include "family.hpp"

#include <string>
#include <vector>

namespace usp {

/// One config being read: the language part, the file's top level, the family's rules and the model so far.
struct Reading {
  ConfigKeys& keys;
  ConfigKeys& top;
  const family::Family* family;  ///< null for an unknown model_type
  Model& model;

  void derive(const std::string& sentence) { model.derived.push_back(sentence); }
  void note(const std::string& sentence) { model.notes.push_back(sentence); }
};

/// What each layer does, one entry per layer; windows are found by layer_window.
[[nodiscard]] std::vector<LayerMixer> read_mixers(Reading& r);

/// Fills Model::kinds and Model::mla: heads and head dims of each layer, grouped.
void read_layers(Reading& r);

/// Fills the MLP and the mixture of experts.
void read_mlp(Reading& r);

/// Fills Model::details: biases, norms, learnt positions.
void read_details(Reading& r);

}  // namespace usp
