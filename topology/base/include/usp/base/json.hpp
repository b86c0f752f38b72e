// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/base/words.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Strict JSON: unknown keys, unknown enum values, duplicate keys, fractions for integers and out-of-range
/// numbers are errors that name the file and the JSON pointer. Include only from .cpp files.
namespace usp {

using Json = nlohmann::ordered_json;

/// Parses `text`. Refuses duplicate keys, nesting deeper than 64, NaN/Infinity, NUL bytes, trailing text, and
/// more values or keys than any file of this project has, whose memory and time would be out of proportion.
/// Throws InvalidInput with the line of the first fault.
[[nodiscard]] Json parse_json(const std::string& text, const std::string& file);

template <class E>
using EnumNames = std::vector<std::pair<std::string_view, E>>;

/// Reads one JSON object by a table of keys; `finish()` refuses whatever was not asked for.
class ObjectReader {
 public:
  /// @param pointer JSON pointer of `value` inside the file, for messages.
  ObjectReader(const Json& value, std::string file, std::string pointer);

  /// From here on `find` and all that is built on it throw MissingValue for an absent key: a value that does
  /// not exist is null. Readers of the objects inside inherit it; those of array elements do not.
  void need_every_key() { every_key_ = true; }

  /// Present and not null. A null says the same as absent: asked for, the key is known.
  [[nodiscard]] bool has(const char* key) const;
  [[nodiscard]] const Json* find(const char* key);      ///< marks the key as known; null and absent: nullptr
  [[nodiscard]] const Json& need(const char* key);      ///< as find; throws MissingValue when absent
  void ignore(const char* key) { known_.insert(key); }  ///< a key that may be there and does not concern us

  [[nodiscard]] std::string string(const char* key);
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most);
  [[nodiscard]] double number(const char* key, double least, double most);
  [[nodiscard]] bool boolean(const char* key);
  [[nodiscard]] std::optional<std::string> maybe_string(const char* key);
  [[nodiscard]] std::optional<std::int64_t> maybe_integer(const char* key, std::int64_t least,
                                                          std::int64_t most);
  [[nodiscard]] std::optional<double> maybe_number(const char* key, double least, double most);
  [[nodiscard]] std::optional<bool> maybe_boolean(const char* key);

  /// Array of `key`; each element goes to `each` with its pointer. Absent is an error unless `optional`.
  void array(const char* key, const std::function<void(const Json&, const std::string& pointer)>& each,
             bool optional = false);
  [[nodiscard]] ObjectReader object(const char* key);
  [[nodiscard]] std::optional<ObjectReader> maybe_object(const char* key);

  template <class E>
  [[nodiscard]] E enumeration(const char* key, const EnumNames<E>& names) {
    const std::string text = string(key);
    for (const auto& [name, value] : names)
      if (name == text) return value;
    std::string known;
    for (const auto& [name, value] : names) known += (known.empty() ? "" : ", ") + std::string(name);
    fail(key, "'" + text + "' is not one of " + known);
  }
  /// A word of the enum's own table.
  template <class E>
  [[nodiscard]] E enumeration(const char* key) {
    const std::string text = string(key);
    for (const Word<E>& word : word_list<E>())
      if (word.text == text) return word.value;
    fail(key, "'" + text + "' is not one of " + joined_words<E>());
  }
  template <class E>
  [[nodiscard]] std::optional<E> maybe_enumeration(const char* key, const EnumNames<E>& names) {
    if (find(key) == nullptr) return std::nullopt;
    return enumeration(key, names);
  }

  /// Throws InvalidInput naming the first key that no call above asked for.
  void finish() const;

  [[noreturn]] void fail(const char* key, const std::string& problem) const;
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& pointer() const { return pointer_; }
  [[nodiscard]] const Json& json() const { return *value_; }

 private:
  const Json* value_;
  std::string file_;
  std::string pointer_;
  mutable std::set<std::string> known_;  ///< has() adds what is null
  bool every_key_ = false;
};

/// Integer, number or string out of one JSON value, with the same strictness.
[[nodiscard]] std::int64_t json_integer(const Json& value, const std::string& file,
                                        const std::string& pointer, std::int64_t least, std::int64_t most);
[[nodiscard]] double json_number(const Json& value, const std::string& file, const std::string& pointer,
                                 double least, double most);
[[nodiscard]] std::string json_string(const Json& value, const std::string& file, const std::string& pointer);

/// Null for an empty optional.
template <class T>
[[nodiscard]] Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class E>
[[nodiscard]] std::string_view enum_name(E value, const EnumNames<E>& names) {
  for (const auto& [name, known] : names)
    if (known == value) return name;
  throw InternalError("an enumerator has no name");
}

}  // namespace usp
