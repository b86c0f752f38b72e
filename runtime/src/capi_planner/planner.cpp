// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/planner/step_input.hpp"

#include <cstdlib>
#include <new>

namespace usp::capi {
namespace {

/// What usp_text_free frees.
char* copied(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

template <class Print>
usp_status plan_text_of(const char* text, char** result, const Print& print) {
  return guarded([&] {
    given(text, "request");
    given(result, "result");
    const auto input = read_plan_request(text, "request", [](const std::string&) {});
    check_degrees(input->request);
    *result = copied(print(input->request, plan_step(input->request)));
  });
}

}  // namespace
}  // namespace usp::capi

usp_status usp_plan_step_json(const char* request, char** result) {
  return usp::capi::plan_text_of(request, result, usp::plan_result_json);
}

usp_status usp_plan_step_file(const char* request, char** plan) {
  return usp::capi::plan_text_of(request, plan,
                                 [](const usp::PlanRequest& asked, const usp::PlanResult& result) {
                                   return usp::write_plan(usp::make_plan_file(asked, result.best()));
                                 });
}

usp_status usp_plan_attention_json(const char* request, char** result) {
  using namespace usp::capi;
  return guarded([&] {
    given(request, "request");
    given(result, "result");
    const auto input = usp::read_attention_request(request, "request", [](const std::string&) {});
    *result = copied(usp::attention_result_json(input->request, usp::plan_attention(input->request)));
  });
}

void usp_text_free(char* text) {
  std::free(text);
}
