// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace usp {

std::vector<std::size_t> Model::kinds_of(int layer) const {
  std::vector<std::size_t> found;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    if (std::binary_search(kinds[k].layers.begin(), kinds[k].layers.end(), layer)) found.push_back(k);
  if (found.empty()) throw InternalError(fmt::format("layer {} belongs to no layer kind", layer));
  return found;
}

std::vector<AlikeLayers> alike_layers(const Model& model, int first, int last) {
  // By kinds, then dense ones by width, those with experts last.
  std::map<std::pair<std::vector<std::size_t>, std::int64_t>, AlikeLayers> groups;
  std::vector<std::vector<std::size_t>> kinds(static_cast<std::size_t>(last - first));
  for (std::size_t k = 0; k < model.kinds.size(); ++k)
    for (const int layer : model.kinds[k].layers)
      if (layer >= first && layer < last) kinds[static_cast<std::size_t>(layer - first)].push_back(k);
  for (int layer = first; layer < last; ++layer) {
    std::vector<std::size_t>& of_layer = kinds[static_cast<std::size_t>(layer - first)];
    expects(!of_layer.empty(), "each layer belongs to a layer kind");
    const std::int64_t mlp = model.is_moe_layer(layer) ? std::numeric_limits<std::int64_t>::max()
                                                       : model.mlp_width(layer).value_or(-1);
    AlikeLayers& group = groups[{std::move(of_layer), mlp}];
    group = {layer, group.count + 1};
  }
  std::vector<AlikeLayers> list;
  for (const auto& [key, group] : groups) list.push_back(group);
  return list;
}

std::int64_t Model::attention_layers() const {
  std::set<int> found;  // a layer may have two kinds of softmax attention
  for (const auto& kind : kinds)
    if (kind.has_softmax()) found.insert(kind.layers.begin(), kind.layers.end());
  return static_cast<std::int64_t>(found.size());
}

bool Model::is_moe_layer(int layer) const {
  return moe && std::binary_search(moe->layers.begin(), moe->layers.end(), layer);
}

std::optional<std::int64_t> Model::mlp_width(int layer) const {
  return mlp_widths.empty() ? dense_intermediate : mlp_widths.at(static_cast<std::size_t>(layer));
}

bool splits_linear_heads(const LinearHeads& heads, std::int64_t degree) {
  const bool shared = heads.style == LinearStyle::mamba || heads.style == LinearStyle::mamba2;
  return heads.value_heads % degree == 0 &&
         (heads.key_heads % degree == 0 || (shared && degree % heads.key_heads == 0));
}

namespace {

constexpr std::int64_t max_listed_degree = 1024;

/// Degrees 1..most for which `even` holds on every kind of the wanted sort; empty when there is no such kind.
template <class Wanted, class Most, class Even>
std::vector<std::int64_t> degrees(const Model& model, Wanted wanted, Most most, Even even) {
  std::vector<const LayerKind*> kinds;
  for (const auto& kind : model.kinds)
    if (wanted(kind)) kinds.push_back(&kind);
  if (kinds.empty()) return {};
  std::int64_t least = most(*kinds.front());
  for (const auto* kind : kinds) least = std::min(least, most(*kind));
  std::vector<std::int64_t> result;
  for (std::int64_t u = 1; u <= least; ++u)
    if (std::all_of(kinds.begin(), kinds.end(), [&](const auto* kind) { return even(*kind, u); }))
      result.push_back(u);
  return result;
}

}  // namespace

std::vector<std::int64_t> even_ulysses_degrees(const Model& model) {
  return degrees(
      model, [](const LayerKind& k) { return k.has_softmax(); },
      [](const LayerKind& k) { return k.query_heads; },
      [](const LayerKind& k, std::int64_t u) {
        return k.query_heads % u == 0 && (k.kv_heads % u == 0 || u % k.kv_heads == 0);
      });
}

std::vector<std::int64_t> even_ulysses_degrees_linear(const Model& model) {
  return degrees(
      model, [](const LayerKind& k) { return k.is_linear(); },
      // Of the channels of short convolutions and of Mamba-1, degrees beyond the ranks of a host say nothing.
      [](const LayerKind& k) { return std::min<std::int64_t>(k.linear->value_heads, max_listed_degree); },
      [](const LayerKind& k, std::int64_t u) { return splits_linear_heads(*k.linear, u); });
}

std::string layer_count_text(const LayerKind& kind) {
  return kind.per_layer == 1 ? fmt::format("{}", kind.layers.size())
                             : fmt::format("{} x {}", kind.layers.size(), kind.per_layer);
}

std::string_view mixer_name(LayerMixer mixer) {
  switch (mixer) {
    case LayerMixer::softmax:
      return "softmax";
    case LayerMixer::sliding:
      return "sliding";
    case LayerMixer::chunked:
      return "chunked";
    case LayerMixer::sparse:
      return "sparse";
    case LayerMixer::cross:
      return "cross";
    case LayerMixer::linear:
      return "linear";
    case LayerMixer::none:
      return "none";
  }
  throw InternalError("a layer mixer has no name");
}

std::string_view linear_style_name(LinearStyle style) {
  switch (style) {
    case LinearStyle::gated_delta:
      return "gated_delta";
    case LinearStyle::kda:
      return "kda";
    case LinearStyle::lightning:
      return "lightning";
    case LinearStyle::mamba:
      return "mamba";
    case LinearStyle::mamba2:
      return "mamba2";
    case LinearStyle::rg_lru:
      return "rg_lru";
    case LinearStyle::short_conv:
      return "short_conv";
  }
  throw InternalError("a linear style has no name");
}

}  // namespace usp
