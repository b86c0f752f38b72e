// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include "usp/base/words.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

/// How text for people looks on a terminal: lines wrapped to its width, headings in bold.
namespace usp {

template <>
struct WordTable<cli::Color> {
  static constexpr Word<cli::Color> words[] = {
      {"auto", cli::Color::automatic}, {"always", cli::Color::always}, {"never", cli::Color::never}};
};

}  // namespace usp

namespace usp::cli {

/// Columns of the terminal behind a file descriptor: COLUMNS where it is set, else what the terminal says; 0
/// for pipes and files, whose lines stay whole.
[[nodiscard]] std::size_t columns_of(int descriptor);
/// Whether escape sequences go to a file descriptor: as --color says, else to terminals unless NO_COLOR is
/// set.
[[nodiscard]] bool colored(Color color, int descriptor);
/// Whether people watch it: mpirun gives its processes terminals, and writes what they say into logs.
[[nodiscard]] bool on_terminal(int descriptor);

/// The line in parts no wider than `columns`, broken between words. What does not fit goes below the last
/// column of a table that has room for text, else a little further in. A command to copy (a line that begins
/// with "usp ") and a word that is wider stay whole; columns 0: the line.
[[nodiscard]] std::string wrapped(std::string_view line, std::size_t columns);

/// "usp: note: ..." on stderr, wrapped and coloured as that is a terminal.
void say(const Invocation& invocation, std::string_view label, const std::string& text);

/// While it lives, std::cout sets its text as the invocation and stdout ask for, and notes that it printed.
class Page {
 public:
  explicit Page(Invocation& invocation);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace usp::cli
