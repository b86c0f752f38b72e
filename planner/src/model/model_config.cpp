// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model_config.hpp"

#include "language_part.hpp"
#include "reading.hpp"

#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

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
  const auto inner = r.keys.boolean("tie_word_embeddings"), outer = r.top.boolean("tie_word_embeddings");
  r.model.tied_embeddings = outer ? outer : inner;
  if (inner && outer && *inner != *outer)
    r.derive(
        fmt::format("tie_word_embeddings = {}: the outer config's; the language part's says {}, and "
                    "transformers 5 takes the outer one",
                    *outer, *inner));
  for (const char* key : {"tie_embeddings", "share_input_output_layers", "tie_word_embedding"})
    if (!r.model.tied_embeddings) r.model.tied_embeddings = r.keys.boolean(key);
  if (r.model.tied_embeddings) return;
  if (r.family == nullptr) {
    r.model.tied_embeddings = true;
    r.derive(
        "tie_word_embeddings = true: assumed, the default of transformers where a config states none "
        "(--model-key tie_word_embeddings=false for the other)");
    return;
  }
  r.model.tied_embeddings = r.family->tied;
  r.derive(fmt::format("tie_word_embeddings = {}: the config states none; the rule of {}",
                       r.family->tied ? "true" : "false", r.model.family));
}

/// model_type of an object as it is, before anything is read from it.
std::string stated_type(const Json& object) {
  const auto at = object.is_object() ? object.find("model_type") : object.end();
  return object.is_object() && at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

/// A config inside another is saved without what its class sets. Keys of sizes are added there alone: a file
/// of its own without them is cut.
std::vector<std::string> add_class_defaults(const Json& config, LanguagePart& part) {
  std::vector<std::string> added;
  if (part.pointer.empty() || !part.object->is_object()) return added;
  const Json defaults = family::class_defaults(stated_type(*part.object));
  for (const auto& [key, value] : defaults.items())
    // What the outer object says of its embedding holds.
    if (!part.object->contains(key) && !config.contains(key)) {
      (*part.object)[key] = value;
      added.push_back(fmt::format("{} = {}", key, value.dump()));
    }
  return added;
}

constexpr KeyNames layer_count_names = {"num_hidden_layers", "n_layer", "num_layers", "n_layers",
                                        "num_transformer_layers"};

/// Layers as the config counts them. Where it states none, a list that names every layer has the count.
/// `mixers` of one layer: some configs count both (LongCat-Flash: num_layers and num_hidden_layers).
std::int64_t layers_of_config(Reading& r, std::int64_t mixers) {
  if (!r.keys.has(layer_count_names))
    for (const char* key : {"layers_block_type", "layer_types"})
      if (const auto names = r.keys.strings(key); names && !names->empty()) {
        r.derive(fmt::format("num_hidden_layers = {}: the entries of {}", names->size(), key));
        return static_cast<std::int64_t>(names->size());
      }
  if (mixers > 1) {
    const auto whole = r.keys.integer({"num_layers"}, 1, limit::layers);
    const auto all = r.keys.integer({"num_hidden_layers"}, 1, limit::layers);
    if (whole && all == mixers * *whole) return *whole;
  }
  return r.keys.need(layer_count_names, 1, limit::layers);
}

void read_sizes(Reading& r) {
  r.model.hidden = r.keys.need({"hidden_size", "n_embd", "d_model", "model_dim", "n_embed"}, 1, limit::width);
  const std::vector<LayerMixer> mixers = r.family == nullptr ? std::vector<LayerMixer>{} : r.family->mixers;
  r.model.layers = layers_of_config(r, std::max<std::int64_t>(1, static_cast<std::int64_t>(mixers.size())));
  if (mixers.empty()) return;
  std::vector<std::string> names;
  for (const LayerMixer mixer : mixers) names.emplace_back(mixer_name(mixer));
  r.derive(
      fmt::format("each layer of {} has {} mixers: {}", r.model.family, mixers.size(), join(names, ", ")));
  r.model.blocks_per_layer = r.family->blocks;
}

/// Dense MLPs beside the experts count as shared experts of their width.
void join_dense_to_experts(Reading& r) {
  if (r.family == nullptr || r.family->dense_beside == 0 || !r.model.moe) return;
  const std::int64_t width = r.keys.need(mlp_width_names, 1, limit::width);
  r.model.moe->shared_experts = r.family->dense_beside;
  r.model.moe->shared_intermediate = r.family->dense_beside * width;
}

}  // namespace

Model read_model_config(const std::string& text, const std::string& file,
                        const std::vector<std::string>& settings) {
  Json json = parse_json(text, file);
  set_model_keys(json, file, settings);
  LanguagePart part = language_part(json, file);
  const std::vector<std::string> defaults = add_class_defaults(json, part);
  ConfigKeys top(json, file, "");
  ConfigKeys keys(*part.object, file, part.pointer);
  Model model;
  model.name = model_name(file);
  model.family = family_name(keys, top);
  Reading r{keys, top, family::find(model.family), model};
  if (const auto why = family::unplannable(model.family); !why.empty())
    keys.fail("model_type",
              fmt::format("'{}' cannot be planned as a model: {}; one attention call of given heads can "
                          "(usp plan attention)",
                          model.family, why));
  if (keys.boolean("is_encoder_decoder").value_or(false))
    keys.fail("is_encoder_decoder", "encoder-decoder models cannot be planned; decoder-only models can");
  if (!defaults.empty())
    r.derive(fmt::format("left out of {} and taken from the class of {}: {}", part.pointer.substr(1),
                         model.family, join(defaults, ", ")));
  for (const std::string& key : settings) r.derive("--model-key " + key);
  read_sizes(r);
  if (model.family.empty()) {
    model.family = "unknown";
    r.note("the config states no model_type: it is read as a plain decoder, with what is assumed listed");
  } else if (!keys.string("model_type") && !top.string("model_type")) {
    r.derive(fmt::format("model_type = {}: from architectures", model.family));
  } else if (r.family == nullptr) {
    r.note(fmt::format(
        "model_type '{}' is not known: it is read as a plain decoder, with what is assumed listed",
        model.family));
  }
  read_embedding(r);
  read_layers(r);
  read_mlp(r);
  join_dense_to_experts(r);
  read_details(r);
  for (const std::string& left : part.left_out)
    if (left != "vision_config") r.note(fmt::format("only the language part is read; {} is left out", left));
  refuse_unread_rules(r);
  refuse_unread_settings(r, settings);
  return model;
}

Model load_model(const std::string& file_or_preset_name, const std::vector<std::string>& settings) {
  const NamedText source = file_or_preset("models", file_or_preset_name);
  return read_model_config(source.text, source.name, settings);
}

}  // namespace usp
