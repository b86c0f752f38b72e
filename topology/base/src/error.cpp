// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"

#include "usp/base/text.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

std::string located(const Where& where, const std::string& problem) {
  std::string text = where.file.empty() ? std::string("input") : escaped(where.file);
  if (where.line > 0) text += fmt::format(":{}", where.line);
  text += ": ";
  if (!where.token.empty()) text += fmt::format("at '{}': ", escaped(where.token));
  return text + problem;
}

std::string with_remedies(const std::string& problem, const std::vector<std::string>& remedies) {
  std::string text = problem;
  for (const auto& remedy : remedies) text += "\n  - " + remedy;
  return text;
}

}  // namespace

InvalidInput::InvalidInput(Where where, const std::string& problem)
    : Error(ExitCode::invalid_input, located(where, problem)), where_(std::move(where)), problem_(problem) {}

MissingValue::MissingValue(Where where, const std::string& key, const std::string& remedy)
    : InvalidInput(std::move(where), fmt::format("{} is unknown; {}", key, remedy)), key_(key) {}

Infeasible::Infeasible(const std::string& problem, std::vector<std::string> remedies)
    : Error(ExitCode::infeasible, with_remedies(problem, remedies)), remedies_(std::move(remedies)) {}

}  // namespace usp
