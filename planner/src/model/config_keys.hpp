// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/limits.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace usp {

/// Largest values that are taken for real: beyond them a config is damaged.
namespace limit {
constexpr std::int64_t layers = 4096;
constexpr std::int64_t width = std::int64_t{1} << 24;
constexpr std::int64_t heads = max_heads;
constexpr std::int64_t head_dim = max_head_dim;
constexpr std::int64_t vocab = std::int64_t{1} << 31;
constexpr std::int64_t window = max_tokens;
}  // namespace limit

using KeyNames = std::initializer_list<const char*>;

/// The keys of one Hugging Face config object under all names they go by. `null` is absent; two names of one
/// value that disagree are refused.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string file, std::string pointer)
      : reader_(object, std::move(file), std::move(pointer)) {}

  [[nodiscard]] bool has(KeyNames names) const;
  /// The key is there, be it null.
  [[nodiscard]] bool stated(const char* key) const { return reader_.json().contains(key); }
  [[nodiscard]] std::optional<std::int64_t> integer(KeyNames names, std::int64_t least, std::int64_t most);
  /// As integer; throws MissingValue naming the first name, its other names, and a foreign key found instead.
  [[nodiscard]] std::int64_t need(KeyNames names, std::int64_t least, std::int64_t most);
  /// One number for all layers, or a list with one per layer.
  [[nodiscard]] std::vector<std::int64_t> per_layer(const char* key, std::int64_t layers, std::int64_t least,
                                                    std::int64_t most);
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(const char* key, std::int64_t least,
                                                                  std::int64_t most);
  [[nodiscard]] std::optional<std::vector<std::string>> strings(const char* key);
  [[nodiscard]] std::optional<bool> boolean(const char* key) {
    read_.insert(key);
    return reader_.maybe_boolean(key);
  }
  [[nodiscard]] std::optional<double> number(const char* key, double least, double most) {
    read_.insert(key);
    return reader_.maybe_number(key, least, most);
  }
  [[nodiscard]] std::optional<std::string> string(const char* key) {
    read_.insert(key);
    return reader_.maybe_string(key);
  }
  [[nodiscard]] bool is_array(const char* key) const {
    return reader_.has(key) && reader_.json().at(key).is_array();
  }
  [[nodiscard]] bool is_string(const char* key) const {
    return reader_.has(key) && reader_.json().at(key).is_string();
  }
  [[nodiscard]] bool is_object(const char* key) const {
    return reader_.has(key) && reader_.json().at(key).is_object();
  }
  [[nodiscard]] std::optional<ConfigKeys> object(const char* key);
  /// Elements of a list, which are objects; empty when the key is absent.
  [[nodiscard]] std::vector<ConfigKeys> objects(const char* key);

  [[nodiscard]] const Json& json() const { return reader_.json(); }
  /// A key that a reader takes from `json`.
  void mark_read(const char* key) { read_.insert(key); }
  /// Keys whose values were asked for.
  [[nodiscard]] const std::set<std::string>& read() const { return read_; }

  [[noreturn]] void fail(const char* key, const std::string& problem) const { reader_.fail(key, problem); }
  [[noreturn]] void missing(const char* key, const std::string& remedy) const;

 private:
  ObjectReader reader_;
  std::set<std::string> read_;
};

}  // namespace usp
