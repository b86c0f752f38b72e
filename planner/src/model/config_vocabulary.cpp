// SPDX-License-Identifier: Apache-2.0
// Keys that could change what attention does, and that no rule of the reader has read.
#include "reading.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp {
namespace {

using Words = std::set<std::string, std::less<>>;

/// Words of keys that speak of layers, of which tokens a query sees, or of what takes the place of attention.
const Words& speaking_words() {
  static const Words words = {
      "layer",  "layers", "block",     "blocks",   "group",   "groups",     "window",     "windows",
      "swa",    "chunk",  "chunks",    "chunked",  "index",   "indexer",    "indices",    "idx",
      "idxs",   "sparse", "sparsity",  "topk",     "cross",   "local",      "global",     "sliding",
      "linear", "hybrid", "pattern",   "interval", "period",  "mamba",      "mamba2",     "ssm",
      "conv",   "state",  "recurrent", "rnn",      "lru",     "delta",      "kda",        "lightning",
      "mixer",  "mixers", "retention", "dilation", "dilated", "compress",   "compressed", "compression",
      "nsa",    "dsa",    "landmark",  "loop",     "loops",   "recurrence", "depth",      "skip",
      "exit",   "share",  "shared",    "sharing",  "altup",   "laurel",     "heads",      "stride",
      "every",  "mod",    "memory",    "zero",     "ngram",   "attn",       "attention"};
  return words;
}

/// Words that make a key one of norms, rotations, initialisation, experts, other senses or tools.
const Words& harmless_words() {
  static const Words words = {"norm",
                              "layernorm",
                              "norms",
                              "eps",
                              "epsilon",
                              "dropout",
                              "drop",
                              "layerdrop",
                              "pdrop",
                              "init",
                              "initializer",
                              "std",
                              "loss",
                              "coef",
                              "coeff",
                              "bias",
                              "router",
                              "rope",
                              "rotary",
                              "theta",
                              "token",
                              "tokens",
                              "image",
                              "vision",
                              "visual",
                              "audio",
                              "video",
                              "speech",
                              "id",
                              "ids",
                              "quantization",
                              "dtype",
                              "cache",
                              "moe",
                              "expert",
                              "experts",
                              "nextn",
                              "mtp",
                              "lr",
                              "gradient",
                              "checkpointing",
                              "fused",
                              "implementation",
                              "softmax",
                              "scaling",
                              "multiplier",
                              "multipliers",
                              "output",
                              "outputs",
                              "auto",
                              "activation"};
  return words;
}

/// Whole keys that only look as if they spoke of such things.
const Words& harmless_keys() {
  static const Words keys = {"n_group",
                             "topk_group",
                             "topk_method",
                             "num_expert_group",
                             "num_expert_groups",
                             "num_limited_groups",
                             "decoder_sparse_step",
                             "mlp_only_layers",
                             "use_cache",
                             "layer_scale",
                             "scale_attn_weights",
                             "max_window_layers",
                             "scale_attn_by_inverse_layer_idx",
                             "reorder_and_upcast_attn",
                             "attn_implementation",
                             "_attn_implementation",
                             "_attn_implementation_autoset",
                             "attention_dtype",
                             "interleaved_sliding_window_first",
                             "tie_word_embeddings",
                             "mlp_layer_types",
                             "mamba_chunk_size",
                             "chunk_size",
                             "max_position_embeddings"};
  return keys;
}

bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json(0) || value == Json("") ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Keys that look as if they spoke of experts or rotations alone.
const Words& speaking_keys() {
  static const Words keys = {"zero_expert_num", "kv_lora_rank"};
  return keys;
}

/// "attn" alone names kernels more often than rules: only lists and objects of it are looked at.
bool speaks(const std::string& key, const Json& value) {
  if (harmless_keys().count(key) != 0 || says_nothing(value)) return false;
  if (speaking_keys().count(key) != 0) return true;
  bool speaking = false;
  for (const std::string& word : split(lower(key), '_')) {
    if (harmless_words().count(word) != 0) return false;
    const bool kernel = (word == "attn" || word == "attention") && !value.is_structured();
    speaking = speaking || (!kernel && speaking_words().count(word) != 0);
  }
  return speaking;
}

bool about_attention(const std::string& key) {
  return key.find("attn") != std::string::npos || key.find("attention") != std::string::npos;
}

void collect(const Json& object, const std::set<std::string>& read, const std::string& prefix,
             std::vector<std::string>& found) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object() && about_attention(key) && read.count(key) == 0)
      collect(value, read, prefix + key + "/", found);
    else if (read.count(key) == 0 && speaks(key, value))
      found.push_back(prefix + key);
  }
}

}  // namespace

void refuse_unread_rules(Reading& r) {
  std::vector<std::string> unread;
  collect(r.keys.json(), r.keys.read(), "", unread);
  if (unread.empty()) return;
  if (r.family != nullptr) {
    r.note(fmt::format("not read, since {} has no such rule: {}", r.model.family, join(unread, ", ")));
    return;
  }
  const std::string& key = unread.front();
  const std::string problem = fmt::format(
      "the config has {}{}, and what it changes in the layers of model_type '{}' is not known", key,
      unread.size() > 1 ? fmt::format(" (and {} more such keys)", unread.size() - 1) : "", r.model.family);
  const std::string other = fmt::format("where it changes no layer, leave it out (--model-key {}=null)", key);
  if (r.keys.has({"layer_types"})) r.keys.fail(key.c_str(), problem + "; " + other);
  r.keys.missing("layer_types", problem + "; list one type per layer, or, " + other);
}

void refuse_unread_settings(const Reading& r, const std::vector<std::string>& settings) {
  std::set<std::string> read = r.keys.read();
  read.insert(r.top.read().begin(), r.top.read().end());
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (read.count(key) != 0 || setting.ends_with("=null")) continue;
    const std::string near = nearest_name(key, {read.begin(), read.end()});
    throw UsageError(fmt::format(
        "--model-key {}: no rule of {} reads {}, so that it would change nothing{}", setting, r.model.family,
        key, near.empty() ? "; leave it out" : fmt::format("; did you mean '{}'?", near)));
  }
}

}  // namespace usp
