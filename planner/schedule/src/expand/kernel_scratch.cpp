// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/kernel_scratch.hpp"

#include "usp/schedule/scratch_rows.hpp"

namespace usp::schedule {

i64 kernel_scratch_bytes(const AttentionPlan& plan, const std::vector<const RankSchedule*>& schedules) {
  // Kernels of passes of their own share no scratch.
  ScratchParts of_pass[2];
  for (const RankSchedule* schedule : schedules) {
    const Backend backend = plan.backend.of(schedule->pass);
    if (backend->add_scratch == nullptr) continue;
    ScratchParts& parts = of_pass[plan.backend.has_parts() ? static_cast<int>(schedule->pass) : 0];
    for (const Step& step : schedule->steps) {
      if (!step.operation->has_pairs) continue;
      const BufferId dq = step[Tensor::dq];
      const DType grads = dq < 0 ? plan.shape.dtype : schedule->buffers[static_cast<std::size_t>(dq)].type;
      backend->add_scratch({plan, *schedule, step, grads}, parts);
    }
  }
  return of_pass[0].bytes() + of_pass[1].bytes();
}

}  // namespace usp::schedule
