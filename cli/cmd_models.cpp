// SPDX-License-Identifier: Apache-2.0
#include "flag_group.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/table.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/parameters.hpp"

#include <algorithm>
#include <iostream>

namespace usp::cli {
namespace {

struct Listed {
  Model model;
  ParameterCount parameters;
  std::string preset;
};

std::vector<Listed> list_models() {
  std::vector<std::string> names = preset_names("models");
  std::sort(names.begin(), names.end());
  std::vector<Listed> list;
  for (const std::string& name : names) {
    Model model = load_model(name);
    ParameterCount parameters = count_parameters(model);
    list.push_back({std::move(model), std::move(parameters), name});
  }
  return list;
}

/// Layers of each kind: "softmax", "softmax 16, linear 48".
std::string mixers(const Model& model) {
  std::string text;
  for (const LayerKind& kind : model.kinds) {
    text += (text.empty() ? "" : ", ") + std::string(mixer_name(kind.kind));
    if (model.kinds.size() > 1) text += " " + layer_count_text(kind);
  }
  return text;
}

/// Of the first kind with softmax attention.
const LayerKind& softmax_of(const Model& model) {
  const auto found = std::find_if(model.kinds.begin(), model.kinds.end(),
                                  [](const LayerKind& kind) { return kind.has_softmax(); });
  return found == model.kinds.end() ? model.kinds.front() : *found;
}

std::string count_or_unknown(const std::optional<std::int64_t>& count) {
  return count ? format_count(*count) : "?";
}

void print(const std::vector<Listed>& list) {
  using Align = TextTable::Align;
  TextTable table;
  table.column("model");
  for (const char* name : {"total", "active", "layers", "hidden", "heads", "dim"})
    table.column(name, Align::right);
  table.column("attention");
  for (const Listed& m : list) {
    const LayerKind& kind = softmax_of(m.model);
    table.row({m.preset, count_or_unknown(m.parameters.total),
               m.model.moe ? count_or_unknown(m.parameters.active) : "", std::to_string(m.model.layers),
               std::to_string(m.model.hidden),
               std::to_string(kind.query_heads) + "/" + std::to_string(kind.kv_heads),
               std::to_string(kind.head_dim_qk), mixers(m.model)});
  }
  std::cout << table.str() << "heads: query/KV; any other model by its Hugging Face config.json\n";
}

void print_json(const std::vector<Listed>& list) {
  Json json = json_header("usp.models");
  json["models"] = Json::array();
  for (const Listed& m : list) {
    const LayerKind& kind = softmax_of(m.model);
    json["models"].push_back({{"name", m.preset},
                              {"family", m.model.family},
                              {"total_parameters", json_or_null(m.parameters.total)},
                              {"active_parameters", json_or_null(m.parameters.active)},
                              {"layers", m.model.layers},
                              {"hidden", m.model.hidden},
                              {"query_heads", kind.query_heads},
                              {"kv_heads", kind.kv_heads},
                              {"head_dim", kind.head_dim_qk}});
  }
  std::cout << json.dump(1) << "\n";
}

}  // namespace

void register_models(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "models", "List the models that have a preset",
                             "  usp models\n"
                             "  usp models --json");
  verb.runs([&invocation] { invocation.json ? print_json(list_models()) : print(list_models()); });
}

}  // namespace usp::cli
