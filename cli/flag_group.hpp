// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "number_check.hpp"
#include "verb.hpp"

#include "usp/base/units.hpp"
#include "usp/base/words.hpp"
#include "usp/planner/workload.hpp"
#include "usp/schedule/limits.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::cli {

/// "a, b or c"
[[nodiscard]] std::string choice(const std::vector<std::string>& words);

/// The words of an enum for --help.
template <class E>
[[nodiscard]] std::string word_choice() {
  std::vector<std::string> words;
  for (const Word<E>& word : word_list<E>()) words.emplace_back(word.text);
  return choice(words);
}

/// What an optional holds; any other type itself.
template <class T>
struct Held {
  using Type = T;
};
template <class T>
struct Held<std::optional<T>> {
  using Type = T;
};

/// Adds flags to one group of a verb's --help. Each writes its typed target while CLI11 reads the command
/// line, so that no flag stays text. Targets outlive the verb.
class FlagGroup {
 public:
  FlagGroup(const Verb& verb, const char* name) : verb_(verb), name_(name) {}

  /// Of a type that CLI11 reads: text, a number, a list of them.
  template <class T>
  CLI::Option* option(const std::string& name, T& target, const std::string& help) {
    return verb_.app.add_option(name, target, help)->group(name_);
  }

  /// A number from least to most; without `most`, what the type holds.
  template <class T, class... Most>
  CLI::Option* number(const std::string& name, T& target, const std::string& help,
                      typename Held<T>::Type least, Most... most) {
    return option(name, target, help)->check(within(least, static_cast<typename Held<T>::Type>(most)...));
  }

  /// target = parse(text, name). An Error of `parse` is kept for check_values.
  template <class Value = std::string, class T, class Parse>
  CLI::Option* parsed(const std::string& name, T& target, const std::string& help, const Parse& parse) {
    const auto read = [&target, parse, name, &invocation = verb_.invocation](const Value& value) {
      try {
        target = parse(value, name);
      } catch (const Error&) {
        if (!invocation.refused_value) invocation.refused_value = std::current_exception();
      }
    };
    return verb_.app.add_option_function<Value>(name, read, help)->group(name_);
  }

  /// A word of an enum with a WordTable; `target` is the enum or an optional of it.
  template <class T>
  CLI::Option* word(const std::string& name, T& target, const std::string& help) {
    return parsed(name, target, help, parse_word<typename Held<T>::Type>);
  }

  /// "128k"
  template <class T>
  CLI::Option* tokens(const std::string& name, T& target, const std::string& help) {
    return parsed(name, target, help, [](const std::string& text, const std::string& flag) {
      return parse_tokens(text, flag, max_tokens);
    });
  }

  /// --documents
  CLI::Option* documents(std::vector<i64>& target, const std::string& help) {
    return parsed("--documents", target, help, parse_document_lengths);
  }

  CLI::Option* flag(const std::string& name, bool& target, const std::string& help) {
    return verb_.app.add_flag(name, target, help)->group(name_);
  }

 private:
  Verb verb_;
  const char* name_;
};

/// The group of flags that name none.
constexpr const char* plain_group = "Options";

}  // namespace usp::cli
