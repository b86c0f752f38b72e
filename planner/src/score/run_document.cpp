// SPDX-License-Identifier: Apache-2.0
#include "run_document.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace usp {
namespace {

enum Format : unsigned { run = 1, bench = 2, bench_gpu = 4, all = 7 };
constexpr std::pair<std::string_view, Format> formats[] = {
    {"usp.run", run}, {"usp.bench", bench}, {"usp.bench_gpu", bench_gpu}};

enum class Is { boolean, integer, number, text, list, object };
constexpr bool or_null = true;

struct Key {
  std::string_view of;  ///< pointer of the object that has it
  std::string_view name;
  Is is;
  bool null = false;  ///< is a value of it
  unsigned formats = all;
  Is elements = Is::object;  ///< of a list
};

/// As configs/schema has them: every key is always there.
constexpr Key keys[] = {
    {"", "format", Is::text},
    {"", "version", Is::integer},
    {"", "request", Is::object},
    {"", "mesh", Is::object},
    {"", "ranks", Is::integer},
    {"", "communicator", Is::text},
    {"", "kernel", Is::text},
    {"", "plan_digest", Is::text, false, run},
    {"", "dtype", Is::text, false, run | bench_gpu},
    {"", "ok", Is::boolean, false, run},
    {"", "verdict", Is::text, false, run},
    {"", "errors", Is::object, false, run},
    {"", "bounds", Is::object, false, run},
    {"", "rows", Is::object, false, run},
    {"", "tolerance", Is::object, or_null, run},
    {"", "traffic", Is::object, false, run},
    {"", "passes", Is::object, false, run},
    {"", "fallbacks", Is::list, false, run},
    {"", "device_memory", Is::object, or_null, run},
    {"", "cores", Is::integer, false, bench},
    {"", "workers", Is::integer, false, bench},
    {"", "devices", Is::list, false, bench_gpu, Is::text},
    {"", "backend", Is::text, false, bench_gpu},
    {"", "passes", Is::list, false, bench | bench_gpu},
    {"/traffic", "planned_bytes", Is::integer, false, run},
    {"/traffic", "executed_bytes", Is::integer, false, run},
    {"/traffic", "equal", Is::boolean, false, run},
    {"/traffic", "difference", Is::text, or_null, run},
    {"/passes", "forward", Is::object, or_null, run},
    {"/passes", "backward", Is::object, or_null, run},
    {"/request", "plan_digest", Is::text},
    {"/request", "layer", Is::integer},
    {"/request", "documents", Is::list, or_null, all, Is::integer},
    {"/request", "forward_only", Is::boolean},
    {"/request", "seed", Is::integer},
    {"/request", "device", Is::text, or_null},
    {"/request", "kernel", Is::text, or_null},
    {"/request", "devices", Is::list, or_null, all, Is::integer},
    {"/request", "ulysses_transport", Is::text, or_null},
    {"/request", "ring_transport", Is::text, or_null},
    {"/request", "deterministic", Is::boolean},
    {"/request", "watchdog_s", Is::number},
    {"/request", "trust_network", Is::boolean},
    {"/request", "repeat", Is::integer},
    {"/request", "q", Is::text, or_null},
    {"/request", "k", Is::text, or_null},
    {"/request", "v", Is::text, or_null},
    {"/request", "d_out", Is::text, or_null},
    {"/request", "verify", Is::boolean},
    {"/request", "tolerance", Is::number, or_null},
    {"/request", "dry_run", Is::boolean},
    {"/request", "debug_nan", Is::boolean},
};

std::string_view words_of(Is is) {
  switch (is) {
    case Is::boolean:
      return "true or false";
    case Is::integer:
      return "an integer";
    case Is::number:
      return "a number";
    case Is::text:
      return "a string";
    case Is::list:
      return "a list";
    case Is::object:
      return "an object";
  }
  throw InternalError("a type of JSON values is not known");
}

bool is_of(const Json& value, Is is) {
  switch (is) {
    case Is::boolean:
      return value.is_boolean();
    case Is::integer:
      return value.is_number_integer();
    case Is::number:
      return value.is_number();
    case Is::text:
      return value.is_string();
    case Is::list:
      return value.is_array();
    case Is::object:
      return value.is_object();
  }
  return false;
}

constexpr const char* remedy = "give the JSON as it was printed";

/// The object at a pointer; null: there is none.
const Json* object_at(const Json& json, std::string_view pointer) {
  if (pointer.empty()) return &json;
  const auto found = json.find(std::string(pointer.substr(1)));
  return found != json.end() && found->is_object() ? &*found : nullptr;
}

void check_key(const Json& object, const Key& key, std::string_view format, const std::string& file) {
  const Where where{file, 0, fmt::format("{}/{}", key.of, key.name)};
  const auto found = object.find(std::string(key.name));
  if (found == object.end())
    throw InvalidInput(where, fmt::format("is absent, and {} always has it; {}", format, remedy));
  if (key.null && found->is_null()) return;
  if (!is_of(*found, key.is))
    throw InvalidInput(where, fmt::format("is {} in {}, not {}; {}", words_of(key.is), format,
                                          found->dump().substr(0, 40), remedy));
  if (key.is != Is::list) return;
  for (const Json& element : *found)
    if (!is_of(element, key.elements))
      throw InvalidInput(where, fmt::format("each element is {} in {}, not {}; {}", words_of(key.elements),
                                            format, element.dump().substr(0, 40), remedy));
}

/// Keys that no format has at an object, or another format has.
void check_names(const Json& object, std::string_view pointer, const auto& is_of_format,
                 std::string_view format, const std::string& file) {
  for (const auto& [name, value] : object.items()) {
    const bool known = std::any_of(std::begin(keys), std::end(keys), [&, of = name](const Key& key) {
      return key.of == pointer && key.name == of && is_of_format(key);
    });
    if (!known)
      throw InvalidInput({file, 0, fmt::format("{}/{}", pointer, name)},
                         fmt::format("{} has no such key; {}", format, remedy));
  }
}

}  // namespace

void check_run_document(ObjectReader& top) {
  const std::string format = top.string("format");
  const auto known = std::find_if(std::begin(formats), std::end(formats),
                                  [&](const auto& entry) { return entry.first == format; });
  if (known == std::end(formats))
    top.fail("format",
             "is none of usp run, usp bench and usp bench --gpu; give what --json of these printed");
  check_json_header(top, format, "run the plan anew");
  const auto is_of_format = [&](const Key& key) { return (key.formats & known->second) != 0; };
  for (const Key& key : keys)
    if (is_of_format(key))
      if (const Json* object = object_at(top.json(), key.of)) check_key(*object, key, format, top.file());
  for (const std::string_view pointer : {"", "/request", "/traffic", "/passes"})
    if (const Json* object = object_at(top.json(), pointer))
      check_names(*object, pointer, is_of_format, format, top.file());
}

}  // namespace usp
