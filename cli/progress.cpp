// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <cstdio>
#include <unistd.h>
#include <utility>

namespace usp::cli {

ProgressLine::ProgressLine(const Invocation& invocation, int total, std::string what)
    : shown_(!invocation.quiet && ::isatty(STDERR_FILENO) != 0), total_(total), what_(std::move(what)) {}

ProgressLine::~ProgressLine() {
  if (percent_ >= 0) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::reached(int count) {
  const int percent = static_cast<int>(100LL * count / total_);
  if (!shown_ || percent == percent_) return;
  percent_ = percent;
  std::fprintf(stderr, "\rusp: %d%% of %d %s", percent, total_, what_.c_str());
}

}  // namespace usp::cli
