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

/// Note of a price that is of other devices than those that execute the plan; empty where they are the same.
/// `all_devices`: the ranks are threads of a host.
std::string priced_devices_note(const AttentionRequest& request) {
  if (request.all_devices == !request.backend->on_gpu) return "";
  return fmt::format("backend {} is priced as {}: the times say nothing about {}", word_of(request.backend),
                     request.all_devices ? "threads of a host" : "GPUs of the cluster",
                     request.all_devices ? "GPUs; give a cluster for times" : "a host; give a GPU's backend");
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
    usp::AttentionResult found = usp::plan_attention(input->request);
    if (const std::string note = priced_devices_note(input->request); !note.empty())
      found.notes.push_back(note);
    *result = copied(usp::attention_result_json(input->request, found));
  });
}

void usp_text_free(char* text) {
  std::free(text);
}
