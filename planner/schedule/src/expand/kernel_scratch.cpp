// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/kernel_scratch.hpp"

#include "usp/schedule/scratch_rows.hpp"

namespace usp::schedule {

i64 kernel_scratch_bytes(const AttentionPlan& plan, const std::vector<const RankSchedule*>& schedules) {
  if (plan.backend->add_scratch == nullptr) return 0;
  ScratchParts parts;
  for (const RankSchedule* schedule : schedules)
    for (const Step& step : schedule->steps) {
      if (!step.operation->has_pairs) continue;
      const BufferId dq = step[Tensor::dq];
      const DType grads = dq < 0 ? plan.shape.dtype : schedule->buffers[static_cast<std::size_t>(dq)].type;
      plan.backend->add_scratch({plan, *schedule, step, grads}, parts);
    }
  return parts.bytes();
}

}  // namespace usp::schedule
