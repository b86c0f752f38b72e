// SPDX-License-Identifier: Apache-2.0
#include "notice.hpp"

#include "usp/base/line.hpp"
#include "usp/base/text.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <vector>

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

Story unpack(const Notice& notice, int size, int teller) {
  const auto known = [&](int rank) { return rank >= 0 && rank < size; };
  const int count = std::clamp(notice.missing_count, 0, static_cast<int>(notice.missing.size()));
  std::vector<int> missing;
  std::copy_if(notice.missing.begin(), notice.missing.begin() + count, std::back_inserter(missing), known);
  return {.fault = {text_of(notice.operation), std::max(notice.tick, -1),
                    known(notice.rank) ? notice.rank : -1, std::move(missing), text_of(notice.story)},
          .exit_code = failure_code(notice.exit_code),
          .origin = known(notice.origin) ? notice.origin : teller};
}

ExitCode failure_code(int number) {
  switch (const auto code = static_cast<ExitCode>(number)) {
    case ExitCode::internal:
    case ExitCode::usage:
    case ExitCode::invalid_input:
    case ExitCode::infeasible:
    case ExitCode::environment:
    case ExitCode::verification:
      return code;
    case ExitCode::ok:
      break;
  }
  return ExitCode::environment;
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
  print_line("usp: rank " + std::to_string(rank) + ": " + escaped(text));
  std::fflush(nullptr);  // what this process printed before stays when it ends without returning
}

}  // namespace usp::comm
