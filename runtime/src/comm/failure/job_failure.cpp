// SPDX-License-Identifier: Apache-2.0
#include "job_failure.hpp"

#include "usp/base/line.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

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

FailureFrame pack(const JobFailure& failure) {
  FailureFrame failure_frame;
  failure_frame.origin = failure.origin;
  failure_frame.exit_code = static_cast<int>(failure.exit_code);
  failure_frame.tick = failure.fault.tick;
  failure_frame.rank = failure.fault.rank;
  const std::size_t missing = std::min(failure.fault.missing.size(), failure_frame.missing.size());
  failure_frame.missing_count = static_cast<int>(missing);
  std::copy_n(failure.fault.missing.begin(), missing, failure_frame.missing.begin());
  failure.fault.operation.copy(failure_frame.operation.data(), failure_frame.operation.size() - 1);
  failure.fault.message.copy(failure_frame.message.data(), failure_frame.message.size() - 1);
  return failure_frame;
}

JobFailure unpack(const FailureFrame& failure_frame, int size, int sender) {
  const auto is_valid_rank = [&](int rank) { return rank >= 0 && rank < size; };
  const int count =
      std::clamp(failure_frame.missing_count, 0, static_cast<int>(failure_frame.missing.size()));
  std::vector<int> missing;
  std::copy_if(failure_frame.missing.begin(), failure_frame.missing.begin() + count,
               std::back_inserter(missing), is_valid_rank);
  return {.fault = {text_of(failure_frame.operation), std::max(failure_frame.tick, -1),
                    is_valid_rank(failure_frame.rank) ? failure_frame.rank : -1, std::move(missing),
                    text_of(failure_frame.message)},
          .exit_code = failure_code(failure_frame.exit_code),
          .origin = is_valid_rank(failure_frame.origin) ? failure_frame.origin : sender};
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

void report_failure(int rank, const std::string& text) {
  print_line(fmt::format("usp: rank {}: {}", rank, escaped(text)));
  std::fflush(nullptr);  // what this process printed before stays when it ends without returning
}

}  // namespace usp::comm
