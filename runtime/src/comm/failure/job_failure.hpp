// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/errors.hpp"

#include <array>
#include <exception>
#include <string>

namespace usp::comm {

/// How a job of processes ended.
struct JobFailure {
  CommunicationFault fault;
  ExitCode exit_code = ExitCode::environment;  ///< what every process ends with
  int origin = 0;  ///< rank that failed first; if several failures race, the lowest rank is reported
};

/// Wire format of a failure report: fixed size, long text truncated.
struct FailureFrame {
  int origin = 0;
  int exit_code = 0;
  std::int32_t tick = -1;
  int rank = -1;
  int missing_count = 0;
  std::array<int, 64> missing{};
  std::array<char, 64> operation{};
  std::array<char, 1024> message{};
};

/// How long notices that crossed may take.
constexpr double crossing_s = 0.05;
/// Time that a rank with a fault waits for the reports of the others.
constexpr double grace_s = 3;

[[nodiscard]] FailureFrame pack(const JobFailure& failure);
/// Of any bytes that rank `teller` of a job of `size` sent: counts are bounded, texts end, ranks are those of
/// the job (the origin of any other is the teller), and the exit code is one of a failure.
[[nodiscard]] JobFailure unpack(const FailureFrame& failure_frame, int size, int sender);
/// The exit code of that number; environment for ok and for numbers that are none.
[[nodiscard]] ExitCode failure_code(int number);

/// What a process that ends with this error exits with.
[[nodiscard]] ExitCode exit_code_of(const std::exception_ptr& error);
/// Prints the failure of this rank on stderr: one line.
void report_failure(int rank, const std::string& text);

}  // namespace usp::comm
