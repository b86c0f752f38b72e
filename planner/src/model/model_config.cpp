// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model_config.hpp"

#include "reading.hpp"

#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

constexpr const char* language_parts[] = {"text_config", "language_config", "llm_config"};

/// The object that holds the language model: a nested one if there is one, else the whole.
ConfigKeys language_part(ConfigKeys& top) {
  std::optional<ConfigKeys> found;
  const char* name = nullptr;
  for (const char* key : language_parts) {
    if (!top.has({key})) continue;
    if (found)
      top.fail(key, fmt::format("and {} are both given; it is ambiguous which is the language model", name));
    found = top.object(key);
    name = key;
  }
  return found ? *found : top;
}

std::string architecture_of(ConfigKeys& keys) {
  const auto names = keys.strings("architectures");
  return names && !names->empty() ? names->front() : "";
}

/// model_type of the language part, else of the file, else by architecture. Empty when none is stated.
std::string family_name(ConfigKeys& keys, ConfigKeys& top) {
  for (ConfigKeys* part : {&keys, &top})
    if (const auto type = part->string("model_type")) return *type;
  for (ConfigKeys* part : {&keys, &top})
    if (auto type = family::model_type_of_architecture(architecture_of(*part)); !type.empty()) return type;
  return "";
}

/// The file's name without folder and ".json"; the name in the config would be a path of its author's
/// machine.
std::string model_name(const std::string& file) {
  std::string name = file.rfind("preset:", 0) == 0 ? file.substr(7) : file;
  if (const auto slash = name.find_last_of('/'); slash != std::string::npos) name = name.substr(slash + 1);
  if (name.size() > 5 && name.substr(name.size() - 5) == ".json") name.resize(name.size() - 5);
  return name;
}

void read_embedding(Reading& r) {
  const bool padded = r.keys.has({"padded_vocab_size"});
  for (ConfigKeys* part : {&r.keys, &r.top})
    if (!r.model.vocab)
      r.model.vocab = part->integer({padded ? "padded_vocab_size" : "vocab_size"}, 1, limit::vocab);
  for (ConfigKeys* part : {&r.keys, &r.top})
    if (!r.model.tied_embeddings) r.model.tied_embeddings = part->boolean("tie_word_embeddings");
  if (r.model.tied_embeddings || r.family == nullptr) return;
  r.model.tied_embeddings = r.family->tied;
  r.derive(fmt::format("tie_word_embeddings = {}: the config states none; the rule of {}",
                       r.family->tied ? "true" : "false", r.model.family));
}

}  // namespace

Model read_model_config(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ConfigKeys top(json, file, "");
  ConfigKeys keys = language_part(top);
  Model model;
  model.name = model_name(file);
  model.family = family_name(keys, top);
  Reading r{keys, top, family::find(model.family), model};
  if (keys.boolean("is_encoder_decoder").value_or(false))
    keys.fail("is_encoder_decoder", "encoder-decoder models cannot be planned; decoder-only models can");
  model.hidden = keys.need({"hidden_size", "n_embd", "d_model"}, 1, limit::width);
  model.layers = keys.need({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}, 1, limit::layers);
  if (model.family.empty()) {
    model.family = "unknown";
    r.note("the config states no model_type: nothing is derived, every key must be stated");
  } else if (!keys.string("model_type") && !top.string("model_type")) {
    r.derive(fmt::format("model_type = {}: from architectures", model.family));
  }
  read_embedding(r);
  read_layers(r);
  read_mlp(r);
  read_details(r);
  return model;
}

Model load_model(const std::string& file_or_preset_name) {
  const NamedText source = file_or_preset("models", file_or_preset_name);
  return read_model_config(source.text, source.name);
}

}  // namespace usp
