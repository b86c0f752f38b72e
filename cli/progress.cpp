// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include "page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace usp::cli {
namespace {

constexpr std::chrono::milliseconds quiet_time{1000};  ///< work that ends before shows nothing
constexpr std::chrono::milliseconds between{100};

}  // namespace

ProgressLine::ProgressLine(const Invocation& invocation)
    : shown_(!invocation.quiet && !invocation.json && on_terminal(STDERR_FILENO)),
      next_(std::chrono::steady_clock::now() + quiet_time) {}

ProgressLine::~ProgressLine() {
  if (written_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::reached(std::int64_t done, std::int64_t total, const char* units) {
  if (!shown_ || std::chrono::steady_clock::now() < next_) return;
  next_ = std::chrono::steady_clock::now() + between;
  written_ = true;
  const auto share = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(1, total));
  const std::string line =
      fmt::format("\r\x1b[Kusp: {}% of {} {}", static_cast<int>(100 * share), total, units);
  std::fputs(line.c_str(), stderr);  // unbuffered: one write
}

}  // namespace usp::cli
