// SPDX-License-Identifier: Apache-2.0
#include "notice.hpp"

#include "usp/base/text.hpp"

#include <algorithm>
#include <cstdio>
#include <new>

namespace usp::comm {
namespace {

template <std::size_t size>
[[nodiscard]] std::string text_of(const std::array<char, size>& text) {
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

}  // namespace

Notice pack(const Story& story) {
  Notice notice;
  notice.origin = story.origin;
  notice.exit_code = static_cast<int>(story.exit_code);
  notice.tick = story.fault.tick;
  notice.rank = story.fault.rank;
  const std::size_t missing = std::min(story.fault.missing.size(), notice.missing.size());
  notice.missing_count = static_cast<int>(missing);
  std::copy_n(story.fault.missing.begin(), missing, notice.missing.begin());
  story.fault.operation.copy(notice.operation.data(), notice.operation.size() - 1);
  story.fault.story.copy(notice.story.data(), notice.story.size() - 1);
  return notice;
}

Story unpack(const Notice& notice) {
  const int missing = std::clamp(notice.missing_count, 0, static_cast<int>(notice.missing.size()));
  return {.fault = {text_of(notice.operation),
                    notice.tick,
                    notice.rank,
                    {notice.missing.begin(), notice.missing.begin() + missing},
                    text_of(notice.story)},
          .exit_code = static_cast<ExitCode>(notice.exit_code),
          .origin = notice.origin};
}

ExitCode exit_code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code();
  } catch (const std::bad_alloc&) {
    return ExitCode::environment;
  } catch (...) {
    return ExitCode::internal;
  }
}

void print_story(int rank, const std::string& text) {
  std::fprintf(stderr, "usp: rank %d: %s\n", rank, escaped(text).c_str());
  std::fflush(nullptr);
}

}  // namespace usp::comm
