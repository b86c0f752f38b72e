// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

/// Checks that tests of readers share.
namespace usp::test {

inline std::string data(const std::string& name) {
  return read_file(std::string(USP_TEST_DATA) + "/" + name);
}

inline bool notes_have(const std::vector<std::string>& notes, const std::string& part) {
  for (const auto& note : notes)
    if (note.find(part) != std::string::npos) return true;
  return false;
}

/// Runs `read` and compares where it fails and with which words.
template <class F>
void expect_refused(F read, long line, const std::string& token, const std::string& words) {
  try {
    read();
    ADD_FAILURE() << "was accepted; expected: " << words;
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where().line, line) << error.what();
    EXPECT_EQ(error.where().token, token) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), ExitCode::invalid_input);
  }
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the test replaces what is not there: " + from);
  return text.replace(at, from.size(), to);
}

}  // namespace usp::test
