// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "family.hpp"

/// Norms and biases that the tables of families share. Private to the config reader.
namespace usp::family {

inline ParameterDetails rms(int per_layer = 2, QkNorm qk = QkNorm::none) {
  ParameterDetails d;
  d.norms_per_layer = per_layer;
  d.qk_norm = qk;
  return d;
}

inline ParameterDetails qkv_biased(ParameterDetails d) {
  d.qkv_bias = true;
  return d;
}

inline ParameterDetails layer_norm(bool bias, int per_layer = 2, int extra = 1) {
  ParameterDetails d;
  d.qkv_bias = d.output_bias = d.mlp_bias = bias;
  d.norms_per_layer = per_layer;
  d.extra_norms = extra;
  d.norm_vectors = 2;
  return d;
}

}  // namespace usp::family
