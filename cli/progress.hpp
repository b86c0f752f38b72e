// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include <string>

namespace usp::cli {

/// One line on stderr that tells how far something is, and goes away with this object: on a terminal only,
/// and not under --quiet.
class ProgressLine {
 public:
  /// "usp: 12% of TOTAL WHAT"
  ProgressLine(const Invocation& invocation, int total, std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void reached(int count);

 private:
  bool shown_;
  int total_;
  int percent_ = -1;
  std::string what_;
};

}  // namespace usp::cli
