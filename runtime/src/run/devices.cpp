// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/devices.hpp"

#include "rank_context.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

bool is_gpu_kernel(const std::string& kernel) {
  const kernels::KernelFactory* const factory = kernels::find_factory(kernel);
  return factory != nullptr && factory->on_gpu;
}

/// Expects a word of the list.
Backend backend_named(const std::string& word) {
  if (const auto backend = find_backend(word)) return *backend;
  throw InternalError("a kernel of GPUs is no backend");
}

AttentionPlan with_backend(AttentionPlan plan, Backend backend) {
  plan.backend = backend;
  return plan;
}

void check_kernel_fits(RunOn on, const std::string& kernel) {
  if (kernel.empty() || is_gpu_kernel(kernel) == (on == RunOn::gpu)) return;
  throw UsageError(
      fmt::format("--kernel {} computes on the {}, which is not --device {}; leave one of them out", kernel,
                  on == RunOn::gpu ? "host" : "GPU", word_of(on)));
}

/// What any GPU backend refuses, before a GPU is looked for.
void check_gpu_takes(const AttentionPlan& plan) {
  try {
    check_attention_plan(with_backend(plan, last_fallback(preferred_gpu_backend())));
  } catch (const InvalidInput& error) {
    throw UsageError(fmt::format("--device cuda: {} {}: leave out --device cuda, or plan the call anew",
                                 error.where().token, error.problem()));
  }
}

}  // namespace

PlacedPlan place_plan(const AttentionPlan& plan, std::optional<RunOn> on, const std::string& kernel,
                      const std::function<std::string(Backend)>& objection_to) {
  if (!on) return {plan, ""};
  check_kernel_fits(*on, kernel);
  Backend backend;
  std::string reason;
  if (on == RunOn::gpu) {
    check_gpu_takes(plan);
    backend = plan.backend;
    if (!kernel.empty()) {
      backend = backend_named(kernel);
      reason = "which --kernel names";
    } else if (!backend->on_gpu) {
      std::string objection;
      for (const Backend preferred : preferred_gpu_backends()) {
        objection = objection_to(preferred);
        backend = objection.empty() ? preferred : last_fallback(preferred);
        reason = fmt::format("{} is {}", preferred->display_name,
                             objection.empty() ? "available" : "not available: " + objection);
        if (objection.empty()) break;
      }
    }
  }
  if (backend == plan.backend) return {plan, ""};
  std::string note =
      fmt::format("backend {} of the plan becomes {}", word_of(plan.backend), word_of(backend));
  if (!reason.empty()) note += ", " + reason;
  return {with_backend(plan, backend), note};
}

std::string why_not_available(Backend backend, const std::vector<int>& devices) {
  const int device = device_of(0, devices);
  if (!schedule::runs_on(backend, device::device_info(device).compute_major))
    return fmt::format("it is for other cards than {}", device::device_info(device).name);
  device::CallStream stream(device);
  const auto memory = kernels::make_cuda_memory(stream);
  try {
    static_cast<void>(kernels::factory_of(backend).make(*memory, false));
    return "";
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

bool runs_on_gpu(const AttentionPlan& plan, const RunOptions& options) {
  return is_gpu_kernel(kernel_name(plan, options));
}

}  // namespace usp
