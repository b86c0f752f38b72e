// SPDX-License-Identifier: Apache-2.0
#include "config_keys.hpp"

#include "usp/base/text.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

/// Keys of other tools (and of other Hugging Face families, with another meaning) that people put where
/// transformers reads something else.
std::string foreign_key_for(const std::string& key, const Json& object) {
  static constexpr std::pair<const char*, const char*> foreign[] = {
      {"hidden_size", "hidden_dim"}, {"intermediate_size", "ffn_embed_dim"}, {"hidden_size", "dim"}};
  for (const auto& [ours, theirs] : foreign)
    if (key == ours && object.contains(theirs)) return theirs;
  return "";
}

}  // namespace

bool ConfigKeys::has(KeyNames names) const {
  for (const char* name : names)
    if (reader_.has(name)) return true;
  return false;
}

std::optional<std::int64_t> ConfigKeys::integer(KeyNames names, std::int64_t least, std::int64_t most) {
  std::optional<std::int64_t> found;
  const char* where = nullptr;
  for (const char* name : names) {
    read_.insert(name);
    const auto value = reader_.maybe_integer(name, least, most);
    if (!value) continue;
    if (found && *found != *value)
      fail(name, fmt::format("says {} and {} says {}, though both name the same value; keep one", *value,
                             where, *found));
    found = value;
    where = name;
  }
  return found;
}

std::int64_t ConfigKeys::need(KeyNames names, std::int64_t least, std::int64_t most) {
  if (const auto value = integer(names, least, most)) return *value;
  const std::vector<std::string> all(names.begin(), names.end());
  std::string remedy = "add the key";
  if (all.size() > 1) remedy += fmt::format(" (also read as {})", join({all.begin() + 1, all.end()}, ", "));
  if (const auto foreign = foreign_key_for(all[0], reader_.json()); !foreign.empty())
    remedy += fmt::format("; '{}' is another tool's key and is not taken for it", foreign);
  missing(*names.begin(), remedy);
}

std::vector<std::int64_t> ConfigKeys::per_layer(const char* key, std::int64_t layers, std::int64_t least,
                                                std::int64_t most) {
  auto list = integers(key, least, most);
  if (!list) missing(key, "add the key");
  if (static_cast<std::int64_t>(list->size()) != layers)
    fail(key, fmt::format("has {} for {}", counted(list->size(), "entry"), counted(layers, "layer")));
  return *list;
}

std::optional<std::vector<std::int64_t>> ConfigKeys::integers(const char* key, std::int64_t least,
                                                              std::int64_t most) {
  read_.insert(key);
  if (!reader_.has(key)) return std::nullopt;
  std::vector<std::int64_t> list;
  reader_.array(key, [&](const Json& value, const std::string& at) {
    list.push_back(json_integer(value, reader_.file(), at, least, most));
  });
  return list;
}

std::optional<std::vector<std::string>> ConfigKeys::strings(const char* key) {
  read_.insert(key);
  if (!reader_.has(key)) return std::nullopt;
  std::vector<std::string> list;
  reader_.array(key, [&](const Json& value, const std::string& at) {
    list.push_back(json_string(value, reader_.file(), at));
  });
  return list;
}

std::vector<ConfigKeys> ConfigKeys::objects(const char* key) {
  read_.insert(key);
  std::vector<ConfigKeys> list;
  if (reader_.has(key))
    reader_.array(
        key, [&](const Json& value, const std::string& at) { list.emplace_back(value, reader_.file(), at); });
  return list;
}

std::optional<ConfigKeys> ConfigKeys::object(const char* key) {
  read_.insert(key);
  if (!reader_.has(key)) return std::nullopt;
  return ConfigKeys(reader_.need(key), reader_.file(), fmt::format("{}/{}", reader_.pointer(), key));
}

void ConfigKeys::missing(const char* key, const std::string& remedy) const {
  throw MissingValue({reader_.file(), 0, fmt::format("{}/{}", reader_.pointer(), key)}, key, remedy);
}

}  // namespace usp
