// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::cli {

/// Why a command failed.
struct Failure {
  ExitCode code = ExitCode::internal;
  std::string text;                   ///< as stderr has it, remedies in lines of their own
  std::string problem;                ///< without the remedies
  std::vector<std::string> remedies;  ///< what would make it feasible
  std::optional<Where> where;         ///< in an input
};
[[nodiscard]] Failure failure_of(const Error& error);

/// One JSON object (schema: configs/schema/error.v2.schema.json): what --json prints where a verb fails
/// before it has printed its document.
[[nodiscard]] std::string error_json(const Failure& failure);

}  // namespace usp::cli
