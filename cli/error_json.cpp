// SPDX-License-Identifier: Apache-2.0
#include "error_json.hpp"

#include "usp/base/json_format.hpp"

namespace usp {

template <>
struct WordTable<ExitCode> {
  static constexpr Word<ExitCode> words[] = {{"ok", ExitCode::ok},
                                             {"internal", ExitCode::internal},
                                             {"usage", ExitCode::usage},
                                             {"invalid_input", ExitCode::invalid_input},
                                             {"infeasible", ExitCode::infeasible},
                                             {"environment", ExitCode::environment},
                                             {"verification", ExitCode::verification}};
};

}  // namespace usp

namespace usp::cli {

Failure failure_of(const Error& error) {
  Failure failure{error.code(), error.what(), error.what(), {}, std::nullopt};
  if (const auto* infeasible = dynamic_cast<const Infeasible*>(&error)) {
    failure.remedies = infeasible->remedies();
    failure.problem = failure.text.substr(0, failure.text.find('\n'));
  }
  if (const auto* input = dynamic_cast<const InvalidInput*>(&error)) failure.where = input->where();
  return failure;
}

std::string error_json(const Failure& failure) {
  Json json = json_header("usp.error");
  json["exit_code"] = static_cast<int>(failure.code);
  json["kind"] = word_of(failure.code);
  json["problem"] = failure.problem;
  json["remedies"] = failure.remedies;
  json["where"] = nullptr;
  if (failure.where)
    json["where"] = {{"file", failure.where->file},
                     {"line", failure.where->line > 0 ? Json(failure.where->line) : Json(nullptr)},
                     {"token", failure.where->token.empty() ? Json(nullptr) : Json(failure.where->token)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace usp::cli
