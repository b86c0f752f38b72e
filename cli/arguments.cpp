// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include "usp/base/shell.hpp"

namespace usp::cli {

std::string arguments_of(const CLI::App& verb, const std::function<bool(const std::string& name)>& kept) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + shell_word(word); };
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || !kept(option->get_name(false, false))) continue;
    if (option->get_positional()) {
      for (const std::string& value : option->results()) add(value);
      continue;
    }
    if (option->get_items_expected_max() == 0) {
      add(option->get_name());
      continue;
    }
    for (const std::string& value : option->results()) add(option->get_name()), add(value);
  }
  return text;
}

}  // namespace usp::cli
