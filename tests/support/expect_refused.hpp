// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace usp::test {

/// The call throws an error of this type, and its text holds `word`.
template <class Refusal = UsageError>
void expect_refused(const std::function<void()>& call, const std::string& word) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << word;
  } catch (const Refusal& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

}  // namespace usp::test
