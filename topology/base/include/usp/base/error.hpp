// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace usp {

/// Process exit codes, the same for every verb.
enum class ExitCode : int {
  ok = 0,
  internal = 1,
  usage = 2,
  invalid_input = 3,
  infeasible = 4,
  environment = 5,
  verification = 6,
};

/// Base of all errors this project throws. The text is one sentence: the problem, why it is one, what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// A flag or argument that cannot be understood or combined (exit 2).
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& text) : Error(ExitCode::usage, text) {}
};

/// Where in an input something was found: a file (or "-"), a line counted from 1 (0 = unknown), and the
/// token or JSON pointer.
struct Where {
  std::string file;
  long line = 0;
  std::string token;
};

/// Malformed input, or input without a required value (exit 3).
class InvalidInput : public Error {
 public:
  InvalidInput(Where where, const std::string& problem);
  [[nodiscard]] const Where& where() const noexcept { return where_; }
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  Where where_;
  std::string problem_;
};

/// A value that the input leaves unknown and the operation needs (exit 3): names the key and what supplies
/// it.
class MissingValue : public InvalidInput {
 public:
  /// @param key    what is unknown, e.g. "devices[].peak_tflops"
  /// @param remedy what to do, e.g. "name the card with --device"
  MissingValue(Where where, const std::string& key, const std::string& remedy);
  [[nodiscard]] const std::string& key() const noexcept { return key_; }

 private:
  std::string key_;
};

/// Nothing legal or nothing that fits (exit 4). `remedies` lists what would make it feasible.
class Infeasible : public Error {
 public:
  Infeasible(const std::string& problem, std::vector<std::string> remedies);
  [[nodiscard]] const std::vector<std::string>& remedies() const noexcept { return remedies_; }

 private:
  std::vector<std::string> remedies_;
};

/// The machine, a file system or a peer failed (exit 5).
class EnvironmentError : public Error {
 public:
  explicit EnvironmentError(const std::string& text) : Error(ExitCode::environment, text) {}
};

/// A check of results against a reference failed (exit 6).
class VerificationError : public Error {
 public:
  explicit VerificationError(const std::string& text) : Error(ExitCode::verification, text) {}
};

/// A broken invariant of this project's own (exit 1).
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& text) : Error(ExitCode::internal, "internal error: " + text) {}
};

/// Throws InternalError when an invariant does not hold; always on.
inline void expects(bool holds, const char* what) {
  if (!holds) throw InternalError(what);
}

}  // namespace usp
