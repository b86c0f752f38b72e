// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/words.hpp"

/// Models that tables of training steps name without their shape.
namespace usp::known {

/// A name in lower case with dashes, and the preset that has its shape.
struct Preset {
  const char* name;
  const char* preset;
};
inline constexpr Preset presets[] = {{"llama-3-8b", "llama-3.1-8b"},
                                     {"llama-3.1-8b", "llama-3.1-8b"},
                                     {"llama-3-70b", "llama-3.1-70b"},
                                     {"llama-3.1-70b", "llama-3.1-70b"},
                                     {"llama-3.3-70b", "llama-3.1-70b"},
                                     {"llama-3-405b", "llama-3.1-405b"},
                                     {"llama-3.1-405b", "llama-3.1-405b"},
                                     {"llama-2-7b", "llama-2-7b"},
                                     {"deepseek-v3", "deepseek-v3"},
                                     {"qwen2.5-72b", "qwen2.5-72b"},
                                     {"qwen3-8b", "qwen3-8b"},
                                     {"qwen3-30b-a3b", "qwen3-30b-a3b"},
                                     {"qwen3-235b-a22b", "qwen3-235b-a22b"},
                                     {"gpt-oss-20b", "gpt-oss-20b"},
                                     {"gpt-oss-120b", "gpt-oss-120b"},
                                     {"mixtral-8x7b", "mixtral-8x7b"},
                                     {"llama-4-scout-17b-16e", "llama-4-scout"}};

/// Dense models by the values of their public config.json.
struct Shape {
  const char* name;
  i64 layers, hidden, heads, kv_heads, ffn, vocab;
  bool gated, tied;
};
inline constexpr Shape shapes[] = {{"llama-7b", 32, 4096, 32, 32, 11008, 32000, true, false},
                                   {"llama-13b", 40, 5120, 40, 40, 13824, 32000, true, false},
                                   {"llama-2-13b", 40, 5120, 40, 40, 13824, 32000, true, false},
                                   {"llama-30b", 60, 6656, 52, 52, 17920, 32000, true, false},
                                   {"llama-33b", 60, 6656, 52, 52, 17920, 32000, true, false},
                                   {"llama-65b", 80, 8192, 64, 64, 22016, 32000, true, false},
                                   {"llama-2-70b", 80, 8192, 64, 8, 28672, 32000, true, false},
                                   {"llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, true, true},
                                   {"llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, true, true},
                                   {"mistral-7b", 32, 4096, 32, 8, 14336, 32000, true, false},
                                   {"qwen-1.8b", 24, 2048, 16, 16, 5504, 151936, true, false},
                                   {"qwen-7b", 32, 4096, 32, 32, 11008, 151936, true, false},
                                   {"qwen-14b", 40, 5120, 40, 40, 13696, 152064, true, false},
                                   {"qwen-72b", 80, 8192, 64, 64, 24576, 152064, true, false},
                                   {"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, true, false},
                                   {"qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, true, false},
                                   {"qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, true, false},
                                   {"yi-34b", 60, 7168, 56, 8, 20480, 64000, true, false},
                                   {"internlm-7b", 32, 4096, 32, 32, 11008, 103168, true, false},
                                   {"internlm-20b", 60, 5120, 40, 40, 13824, 103168, true, false},
                                   {"gpt-3-175b", 96, 12288, 96, 96, 49152, 50257, false, true},
                                   {"bloom-176b", 70, 14336, 112, 112, 57344, 250880, false, true},
                                   {"nemotron-4-340b", 96, 18432, 96, 8, 73728, 256000, false, false}};

}  // namespace usp::known
