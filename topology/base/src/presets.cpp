// SPDX-License-Identifier: Apache-2.0
#include "usp/base/presets.hpp"

#include "usp/base/embedded.hpp"
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace usp {

std::vector<std::string> preset_names(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& file : embedded::all()) {
    std::string_view path = file.path;
    if (path.size() > kind.size() + 6 && path.substr(0, kind.size()) == kind && path[kind.size()] == '/')
      names.emplace_back(path.substr(kind.size() + 1, path.size() - kind.size() - 6));
  }
  return names;
}

bool is_shipped(const std::string& kind, const std::string& name) {
  const std::vector<std::string> names = preset_names(kind);
  return std::find(names.begin(), names.end(), name) != names.end();
}

NamedText shipped_preset(const std::string& kind, const std::string& name) {
  for (const auto& file : embedded::all())
    if (file.path == fmt::format("{}/{}.json", kind, name)) return {"preset:" + name, std::string(file.text)};
  const std::vector<std::string> names = preset_names(kind);
  std::string near = nearest_name(name, names);
  if (near.empty()) near = nearest_name(lower(name.substr(name.rfind('/') + 1)), names);  // a hub's name
  throw InvalidInput({name, 0, ""}, "no such file, and no preset of that name; " +
                                        (near.empty() ? "the presets are " + join(names, ", ")
                                                      : fmt::format("did you mean '{}'?", near)));
}

NamedText file_or_preset(const std::string& kind, const std::string& name) {
  std::error_code ignored;
  if (name == "-" || std::filesystem::exists(name, ignored)) return {name, read_file(name)};
  return shipped_preset(kind, name);
}

}  // namespace usp
