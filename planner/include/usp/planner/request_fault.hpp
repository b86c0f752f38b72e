// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <optional>
#include <string>

namespace usp {

/// A choice of a request to plan a step that cannot act beside the model and the request's other choices.
struct RequestFault {
  std::string flag;     ///< of the command line: "--offload"
  std::string pointer;  ///< of a request in JSON: "/fixed/offload"
  std::string why;      ///< with what to do
};

/// The first such choice; empty: all of them act, or are left to the planner. The model is known.
[[nodiscard]] std::optional<RequestFault> request_fault(const PlanRequest& request);

/// Whether the fixed choices leave room for a ring of latents.
[[nodiscard]] bool allows_latent(const PlanRequest& request);

}  // namespace usp
