// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json.hpp"

#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace usp {
namespace {

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_values = std::size_t{1} << 22;     // each takes some hundred bytes at most
constexpr std::size_t max_key_steps = std::size_t{1} << 29;  // a key is sought among those before it

long line_of(const std::string& text, std::size_t byte) {
  long line = 1;
  for (std::size_t i = 0; i < byte && i < text.size(); ++i)
    if (text[i] == '\n') ++line;
  return line;
}

/// @param byte where the parser stopped, counted from 1
std::string why_not_json(const std::string& text, std::size_t byte) {
  if (trim(text).empty()) return "not JSON: the file is empty";
  if (byte > text.size()) return "not JSON: it ends inside a value, as if it were cut off";
  const auto c = static_cast<unsigned char>(text[std::max<std::size_t>(byte, 1) - 1]);
  const std::string at = fmt::format(" at byte {}", byte);
  if (std::isprint(c) != 0) return fmt::format("not JSON: unexpected '{}'{}", static_cast<char>(c), at);
  if (std::isspace(c) != 0) return "not JSON: a value, key or string does not end" + at;
  return fmt::format("not JSON: unexpected value {}{}; the file may be binary", c, at);
}

/// Walks through a document before anything of it is kept, and throws for what it must not hold. (A callback
/// of the parser, which could do so too, makes it look at all earlier elements of an array after each
/// object.)
class Guard : public nlohmann::json_sax<Json> {
 public:
  explicit Guard(const std::string& file) : file_(file) {}

  bool null() override { return meet(); }
  bool boolean(bool) override { return meet(); }
  bool number_integer(number_integer_t) override { return meet(); }
  bool number_unsigned(number_unsigned_t) override { return meet(); }
  bool number_float(number_float_t, const string_t&) override { return meet(); }
  bool string(string_t&) override { return meet(); }
  bool binary(binary_t&) override { return meet(); }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  /// The parser that keeps the document says it again, and better.
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool key(string_t& key) override {
    if (!open_.back().insert(key).second) refuse(key, "duplicate key; remove one");
    key_steps_ += open_.back().size();
    if (key_steps_ > max_key_steps)
      refuse(key, "objects of tens of thousands of keys; this is not such a file");
    return true;
  }

 private:
  bool meet() {
    if (open_.size() > max_depth) refuse("", "nesting deeper than 64 levels; flatten the file");
    if (++values_ > max_values) refuse("", "more than 4,194,304 values; this is not such a file");
    return true;
  }
  bool open() {
    meet();
    open_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  [[noreturn]] void refuse(const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, 0, token}, problem);
  }

  const std::string& file_;
  std::vector<std::set<std::string>> open_;  ///< of every open object its keys; of an array none
  std::size_t values_ = 0, key_steps_ = 0;
};

}  // namespace

Json parse_json(const std::string& text, const std::string& file) {
  // The parser would take a NUL byte for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos)
    throw InvalidInput({file, line_of(text, nul), ""}, "not JSON: it holds a NUL byte");
  Guard guard(file);
  try {
    Json::sax_parse(text, &guard);
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw InvalidInput({file, line_of(text, error.byte), ""}, why_not_json(text, error.byte));
  } catch (const Json::exception&) {
    throw InvalidInput({file, 0, ""}, "not JSON: it holds a number beyond the range of a double");
  }
}

ObjectReader::ObjectReader(const Json& value, std::string file, std::string pointer)
    : value_(&value), file_(std::move(file)), pointer_(std::move(pointer)) {
  if (!value.is_object())
    throw InvalidInput({file_, 0, pointer_.empty() ? "/" : pointer_}, "an object is needed here");
}

bool ObjectReader::has(const char* key) const {
  const auto at = value_->find(key);
  if (at == value_->end()) return false;
  if (at->is_null()) known_.insert(key);
  return !at->is_null();
}

const Json* ObjectReader::find(const char* key) {
  known_.insert(key);
  const auto at = value_->find(key);
  if (every_key_ && at == value_->end())
    throw MissingValue({file_, 0, fmt::format("{}/{}", pointer_, key)}, key,
                       "add the key, with null where it has no value");
  return at == value_->end() || at->is_null() ? nullptr : &*at;
}

const Json& ObjectReader::need(const char* key) {
  const Json* value = find(key);
  if (value == nullptr)
    throw MissingValue({file_, 0, fmt::format("{}/{}", pointer_, key)}, key, "add the key");
  return *value;
}

std::string ObjectReader::string(const char* key) {
  return json_string(need(key), file_, fmt::format("{}/{}", pointer_, key));
}

std::int64_t ObjectReader::integer(const char* key, std::int64_t least, std::int64_t most) {
  return json_integer(need(key), file_, fmt::format("{}/{}", pointer_, key), least, most);
}

double ObjectReader::number(const char* key, double least, double most) {
  return json_number(need(key), file_, fmt::format("{}/{}", pointer_, key), least, most);
}

bool ObjectReader::boolean(const char* key) {
  const Json& value = need(key);
  if (!value.is_boolean()) fail(key, "true or false is needed here");
  return value.get<bool>();
}

std::optional<std::string> ObjectReader::maybe_string(const char* key) {
  if (find(key) == nullptr) return std::nullopt;
  return string(key);
}

std::optional<std::int64_t> ObjectReader::maybe_integer(const char* key, std::int64_t least,
                                                        std::int64_t most) {
  if (find(key) == nullptr) return std::nullopt;
  return integer(key, least, most);
}

std::optional<double> ObjectReader::maybe_number(const char* key, double least, double most) {
  if (find(key) == nullptr) return std::nullopt;
  return number(key, least, most);
}

std::optional<bool> ObjectReader::maybe_boolean(const char* key) {
  if (find(key) == nullptr) return std::nullopt;
  return boolean(key);
}

void ObjectReader::array(const char* key, const std::function<void(const Json&, const std::string&)>& each,
                         bool optional) {
  const Json* value = optional ? find(key) : &need(key);
  if (value == nullptr) return;
  if (!value->is_array()) fail(key, "an array is needed here");
  for (std::size_t i = 0; i < value->size(); ++i)
    each((*value)[i], fmt::format("{}/{}/{}", pointer_, key, i));
}

ObjectReader ObjectReader::object(const char* key) {
  ObjectReader inside(need(key), file_, fmt::format("{}/{}", pointer_, key));
  inside.every_key_ = every_key_;
  return inside;
}

std::optional<ObjectReader> ObjectReader::maybe_object(const char* key) {
  if (find(key) == nullptr) return std::nullopt;
  return object(key);
}

void ObjectReader::finish() const {
  for (const auto& item : value_->items())
    if (known_.count(item.key()) == 0)
      fail(item.key().c_str(), "the key is not known here; check its spelling");
}

void ObjectReader::fail(const char* key, const std::string& problem) const {
  throw InvalidInput({file_, 0, fmt::format("{}/{}", pointer_, key)}, problem);
}

std::int64_t json_integer(const Json& value, const std::string& file, const std::string& pointer,
                          std::int64_t least, std::int64_t most) {
  const auto refuse = [&](const std::string& why) -> std::int64_t {
    throw InvalidInput({file, 0, pointer}, why);
  };
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return refuse("the integer is too large");
  std::int64_t result = 0;
  if (value.is_number_integer()) {
    result = value.get<std::int64_t>();
  } else if (value.is_number_float() && std::nearbyint(value.get<double>()) == value.get<double>() &&
             std::abs(value.get<double>()) < 9e15) {
    result = static_cast<std::int64_t>(value.get<double>());  // 1e6 is how people write a million
  } else {
    return refuse("an integer is needed here");
  }
  if (result < least || result > most)
    return refuse(fmt::format("{} lies outside {}..{}", result, least, most));
  return result;
}

double json_number(const Json& value, const std::string& file, const std::string& pointer, double least,
                   double most) {
  if (!value.is_number()) throw InvalidInput({file, 0, pointer}, "a number is needed here");
  const double result = value.get<double>();
  if (!(result >= least && result <= most))
    throw InvalidInput({file, 0, pointer},
                       fmt::format("the number {} lies outside the legal range", value.dump()));
  return result;
}

std::string json_string(const Json& value, const std::string& file, const std::string& pointer) {
  if (!value.is_string()) throw InvalidInput({file, 0, pointer}, "a string is needed here");
  return value.get<std::string>();
}

}  // namespace usp
