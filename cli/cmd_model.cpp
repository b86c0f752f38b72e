// SPDX-License-Identifier: Apache-2.0
#include "flag_group.hpp"
#include "step_flags.hpp"

#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

/// "0-3, 5, 7": runs of layers, or every nth of them, shortened.
std::string layer_list(const std::vector<int>& layers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < layers.size();) {
    const int step = i + 1 < layers.size() ? layers[i + 1] - layers[i] : 1;
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] - layers[last] == step) ++last;
    if (last < i + 2) last = i;
    if (last == i)
      parts.push_back(std::to_string(layers[i]));
    else
      parts.push_back(
          fmt::format("{}-{}{}", layers[i], layers[last], step > 1 ? fmt::format(" by {}", step) : ""));
    i = last + 1;
  }
  return join(parts, ", ");
}

std::string or_unknown(const std::optional<std::int64_t>& value) {
  return value ? std::to_string(*value) : "unknown";
}

std::string degree_list(const std::vector<std::int64_t>& degrees) {
  std::vector<std::string> parts;
  for (const auto degree : degrees) parts.push_back(std::to_string(degree));
  return join(parts, " ");
}

/// From which degree KV heads are on several ranks; empty: none of them.
std::string shared_text(const Model& model, const std::vector<std::int64_t>& degrees) {
  std::int64_t least = 0;
  for (const LayerKind& kind : model.kinds)
    if (kind.has_softmax() && (least == 0 || kind.kv_heads < least)) least = kind.kv_heads;
  const auto shared =
      std::find_if(degrees.begin(), degrees.end(), [&](std::int64_t degree) { return degree > least; });
  return shared == degrees.end() ? "" : fmt::format(" (from {} on, a KV head is on several ranks)", *shared);
}

void print_kinds(const Model& model) {
  using Align = TextTable::Align;
  TextTable table;
  table.column("kind");
  for (const char* name : {"count", "query heads", "kv heads", "dim qk", "dim v", "window"})
    table.column(name, Align::right);
  table.column("layers");
  for (const auto& kind : model.kinds) {
    std::vector<std::string> row = {std::string(mixer_name(kind.kind)), layer_count_text(kind)};
    const auto numbers =
        kind.kind == LayerMixer::none ? std::vector<std::int64_t>(4, 0)
        : kind.is_linear()
            ? std::vector<std::int64_t>{kind.linear->key_heads, kind.linear->value_heads,
                                        kind.linear->key_dim, kind.linear->value_dim}
            : std::vector<std::int64_t>{kind.query_heads, kind.kv_heads, kind.head_dim_qk, kind.head_dim_v};
    for (const auto number : numbers) row.push_back(std::to_string(number));
    row.push_back(kind.window                      ? std::to_string(*kind.window)
                  : kind.sparse                    ? fmt::format("top {}", kind.sparse->topk)
                  : kind.kind == LayerMixer::cross ? std::to_string(kind.cross_tokens)
                                                   : "-");
    row.push_back(layer_list(kind.layers));
    table.row(row);
  }
  std::cout << table.str(2);
  if (!even_ulysses_degrees_linear(model).empty())
    std::cout << "  (linear: key heads and value heads stand under query and kv heads)\n";
}

void print_parameters(const ParameterCount& count) {
  TextTable table;
  table.column("parameters");
  table.column("", TextTable::Align::right);
  table.column("", TextTable::Align::right);
  const auto row = [&](const char* name, std::optional<std::int64_t> value) {
    table.row({name, value ? format_count(*value) : "unknown", or_unknown(value)});
  };
  row("embedding", count.embedding);
  row("lm head", count.lm_head);
  row("attention", count.attention);
  if (count.linear_attention > 0) row("linear attention", count.linear_attention);
  row("mlp", count.mlp);
  if (count.experts != 0) row("experts", count.experts);
  row("norms", count.norms);
  table.rule();
  row("total", count.total);
  if (count.experts != 0) row("active per token", count.active);
  std::cout << table.str(2);
}

void print_list(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  std::cout << title << "\n";
  for (const auto& line : lines) std::cout << "  - " << line << "\n";
}

void print_model(const Model& model) {
  const ParameterCount count = count_parameters(model);
  std::cout << model.name << " (" << model.family << "): " << model.layers << " layers, hidden "
            << model.hidden << ", vocab " << or_unknown(model.vocab) << "\n";
  print_kinds(model);
  if (model.moe)
    std::cout << "  experts: " << model.moe->experts << ", " << model.moe->experts_per_token << " per token, "
              << model.moe->shared_experts << " shared, on " << model.moe->layers.size() << " layers\n";
  const auto even = even_ulysses_degrees(model);
  if (!even.empty())
    std::cout << "  even Ulysses degrees: " << degree_list(even) << shared_text(model, even) << "\n";
  const auto linear = even_ulysses_degrees_linear(model);
  if (!linear.empty()) std::cout << "  even on the linear layers: " << degree_list(linear) << "\n";
  print_parameters(count);
  print_list("derived by the architecture's rules", model.derived);
  std::vector<std::string> notes = model.notes;
  notes.insert(notes.end(), count.notes.begin(), count.notes.end());
  print_list("notes", notes);
}

}  // namespace

void register_model(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "model", "Show what a model's config.json means for the planner",
               "  usp model config.json\n"
               "  usp model llama-3.1-8b --json\n"
               "  cat config.json | usp model -");
  auto file = std::make_shared<std::string>();
  FlagGroup(verb, plain_group)
      .option("FILE", *file,
              "Hugging Face config.json, '-' for stdin, or a preset's name (usp models lists them)")
      ->required()
      ->type_name(input_file);
  auto keys = std::make_shared<std::vector<std::string>>();
  add_model_keys(verb, *keys);
  verb.runs([file, keys, &invocation] {
    const Model model = load_model(*file, *keys);
    if (invocation.json)
      std::cout << model_json(model) << "\n";
    else
      print_model(model);
  });
}

}  // namespace usp::cli
