// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <string>
#include <string_view>

/// The words of an enum: one table, read by the command line, JSON, reports, traces and errors alike.
namespace usp {

template <class E>
struct Word {
  std::string_view text;
  E value;
};

/// Specialised for every enum that has words: `static constexpr Word<E> words[]`, one row per enumerator.
template <class E>
struct WordTable;

template <class E>
class WordList {
 public:
  template <std::size_t N>
  constexpr WordList(const Word<E> (&words)[N]) : begin_(words), end_(words + N) {}
  constexpr WordList(const Word<E>* begin, std::size_t count) : begin_(begin), end_(begin + count) {}
  [[nodiscard]] constexpr const Word<E>* begin() const { return begin_; }
  [[nodiscard]] constexpr const Word<E>* end() const { return end_; }

 private:
  const Word<E>* begin_;
  const Word<E>* end_;
};

template <class E>
[[nodiscard]] WordList<E> word_list() {
  return WordTable<E>::words;
}

/// Throws InternalError for a value that has no word.
template <class E>
[[nodiscard]] std::string_view word_of(E value) {
  for (const Word<E>& word : word_list<E>())
    if (word.value == value) return word.text;
  throw InternalError("an enumerator has no word");
}

/// "ring, ring_direct, all_gather_kv"
template <class E>
[[nodiscard]] std::string joined_words() {
  std::string list;
  for (const Word<E>& word : word_list<E>()) list += (list.empty() ? "" : ", ") + std::string(word.text);
  return list;
}

/// Throws UsageError that names `flag` and the words it takes.
template <class E>
[[nodiscard]] E parse_word(std::string_view text, std::string_view flag) {
  for (const Word<E>& word : word_list<E>())
    if (word.text == text) return word.value;
  throw UsageError(std::string(flag) + ": '" + std::string(text) + "' is not one of " + joined_words<E>());
}

}  // namespace usp
