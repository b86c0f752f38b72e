// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/attention_kernel.hpp"

#include "block_steps.hpp"

namespace usp::kernels {

std::unique_ptr<PreparedAttendBlocks> AttentionKernel::prepare_blocks(const AttendBlocks& list) {
  return std::make_unique<BlockSteps<AttendArgs>>(*this, list);
}

std::unique_ptr<PreparedAttendGradBlocks> AttentionKernel::prepare_blocks(const AttendGradBlocks& list) {
  return std::make_unique<BlockSteps<AttendGradArgs>>(*this, list);
}

}  // namespace usp::kernels
