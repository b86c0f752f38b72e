// SPDX-License-Identifier: Apache-2.0
#include "language_part.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr const char* language_names[] = {"text_config",    "language_config",   "llm_config",
                                          "thinker_config", "lm_config",         "language_model_config",
                                          "decoder_config", "text_model_config", "language_model"};
constexpr const char* hidden_names[] = {"hidden_size", "n_embd", "d_model", "model_dim", "n_embed"};
constexpr const char* layer_names[] = {"num_hidden_layers", "n_layer", "num_layers", "n_layers",
                                       "num_transformer_layers"};
/// Parts of other senses and of speech output, whose sizes are not the language model's.
constexpr const char* other_parts[] = {"vision",  "visual",    "image", "audio",   "speech",
                                       "talker",  "token2wav", "codec", "encoder", "projector",
                                       "adapter", "draft",     "depth", "tts"};

template <class Names>
bool states_one(const Json& object, const Names& names) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* name) { return object.contains(name) && !object[name].is_null(); });
}

bool states_sizes(const Json& object) {
  return states_one(object, hidden_names) && states_one(object, layer_names);
}

bool other_part(const std::string& key) {
  return std::any_of(std::begin(other_parts), std::end(other_parts),
                     [&](const char* part) { return key.find(part) != std::string::npos; });
}

/// The object, or one inside it that is no part of another sense.
bool holds_sizes(const Json& object) {
  if (states_sizes(object)) return true;
  return std::any_of(object.items().begin(), object.items().end(), [](const auto& item) {
    return item.value().is_object() && !other_part(item.key()) && holds_sizes(item.value());
  });
}

[[noreturn]] void ambiguous(const LanguagePart& part, const std::string& file,
                            const std::vector<std::string>& found) {
  throw InvalidInput(
      {file, 0, part.pointer + "/" + found[1]},
      fmt::format("and {} are both given; it is ambiguous which is the language model", found[0]));
}

/// The name of the object to go into; empty: this object is the language model.
std::string next_name(const LanguagePart& part, const std::string& file) {
  const Json& object = *part.object;
  std::vector<std::string> found;
  for (const char* name : language_names)
    if (object.contains(name) && object[name].is_object()) found.emplace_back(name);
  if (found.size() > 1) ambiguous(part, file, found);
  if (found.size() == 1) return found[0];
  if (states_one(object, hidden_names) || states_one(object, layer_names)) return "";
  for (const auto& [key, value] : object.items())
    if (value.is_object() && !other_part(key) && holds_sizes(value)) found.push_back(key);
  if (found.size() > 1) ambiguous(part, file, found);
  return found.empty() ? "" : found[0];
}

}  // namespace

LanguagePart language_part(Json& config, const std::string& file) {
  constexpr int max_depth = 16;
  LanguagePart part{&config, "", {}};
  for (int depth = 0; depth < max_depth && part.object->is_object(); ++depth) {
    const std::string name = next_name(part, file);
    if (name.empty()) return part;
    for (const auto& [key, value] : part.object->items())
      if (key != name && value.is_object() && (states_sizes(value) || key == "vision_config"))
        part.left_out.push_back(key);
    part.object = &(*part.object)[name];
    part.pointer += "/" + name;
  }
  return part;
}

void set_model_keys(Json& config, const std::string& file, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UsageError(fmt::format("--model-key {}: expected KEY=VALUE, e.g. gated_mlp=true", setting));
    const std::string value = setting.substr(equals + 1);
    Json parsed = Json::parse(value, nullptr, false);
    Json& object = *language_part(config, file).object;
    if (!object.is_object()) throw InvalidInput({file, 0, ""}, "expected an object");
    object[setting.substr(0, equals)] = parsed.is_discarded() ? Json(value) : std::move(parsed);
  }
}

}  // namespace usp
