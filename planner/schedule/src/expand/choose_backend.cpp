// SPDX-License-Identifier: Apache-2.0
#include "choose_backend.hpp"

namespace usp::schedule {

Backend fallback_that_takes(const AttentionPlan& plan, Pass pass, Range query_heads) {
  Backend backend = fallback_of(plan.backend, pass);
  while (backend->fallback != nullptr &&
         unsupported_reason(kernel_traits(backend), call_traits(plan, pass, query_heads)) !=
             UnsupportedReason::none)
    backend = fallback_of(backend);
  return backend;
}

StepBackend choose_backend(const AttentionPlan& plan, Pass pass, Range query_heads, const Slice* slices,
                           i64 count) {
  StepBackend step;
  step.use = plan.backend.of(pass);
  const KernelTraits& traits = kernel_traits(step.use);
  if (step.use->fallback == nullptr) return step;
  const auto left = [&](UnsupportedReason why) {
    return StepBackend{fallback_that_takes(plan, pass, query_heads), why, 0,
                       static_cast<std::int32_t>(count)};
  };
  if (const UnsupportedReason why = unsupported_reason(plan, pass, query_heads);
      why != UnsupportedReason::none)
    return left(why);
  if (traits.any_slices) return step;
  if (count > static_cast<i64>(traits.max_slices)) return left(UnsupportedReason::many_slices);
  const BlockSplit share = split_into_blocks(traits, slices, count, pass == Pass::backward);
  if (share.blocks.empty())
    return left(share.why == UnsupportedReason::none ? UnsupportedReason::no_pairs : share.why);
  step.why = share.why;
  step.blocks = static_cast<std::int32_t>(share.blocks.size());
  step.left = static_cast<std::int32_t>(share.rest.size());
  return step;
}

}  // namespace usp::schedule
