// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace usp {

std::size_t Model::kind_of(int layer) const {
  for (std::size_t k = 0; k < kinds.size(); ++k)
    if (std::binary_search(kinds[k].layers.begin(), kinds[k].layers.end(), layer)) return k;
  throw InternalError(fmt::format("layer {} belongs to no layer kind", layer));
}

std::vector<AlikeLayers> alike_layers(const Model& model, int first, int last) {
  std::vector<AlikeLayers> groups;
  std::int64_t found = 0;
  for (const LayerKind& kind : model.kinds) {
    AlikeLayers dense, experts;
    for (const int layer : kind.layers) {
      if (layer < first || layer >= last) continue;
      AlikeLayers& group = model.is_moe_layer(layer) ? experts : dense;
      group = {layer, group.count + 1};
    }
    for (const AlikeLayers& group : {dense, experts})
      if (group.count > 0) groups.push_back(group);
    found += dense.count + experts.count;
  }
  expects(found == last - first, "each layer belongs to one layer kind");
  return groups;
}

std::int64_t Model::attention_layers() const {
  std::int64_t count = 0;
  for (const auto& kind : kinds)
    if (!kind.is_linear()) count += static_cast<std::int64_t>(kind.layers.size());
  return count;
}

bool Model::is_moe_layer(int layer) const {
  return moe && std::binary_search(moe->layers.begin(), moe->layers.end(), layer);
}

namespace {

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
      model, [](const LayerKind& k) { return !k.is_linear(); },
      [](const LayerKind& k) { return k.query_heads; },
      [](const LayerKind& k, std::int64_t u) {
        return k.query_heads % u == 0 && (k.kv_heads % u == 0 || u % k.kv_heads == 0);
      });
}

std::vector<std::int64_t> even_ulysses_degrees_linear(const Model& model) {
  return degrees(
      model, [](const LayerKind& k) { return k.is_linear(); },
      [](const LayerKind& k) { return std::min(k.linear->key_heads, k.linear->value_heads); },
      [](const LayerKind& k, std::int64_t u) {
        return k.linear->key_heads % u == 0 && k.linear->value_heads % u == 0;
      });
}

std::string_view mixer_name(LayerMixer mixer) {
  switch (mixer) {
    case LayerMixer::softmax:
      return "softmax";
    case LayerMixer::sliding:
      return "sliding";
    case LayerMixer::chunked:
      return "chunked";
    case LayerMixer::linear:
      return "linear";
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
  }
  throw InternalError("a linear style has no name");
}

}  // namespace usp
