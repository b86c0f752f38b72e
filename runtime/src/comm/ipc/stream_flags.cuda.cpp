// SPDX-License-Identifier: Apache-2.0
#include "stream_flags.hpp"

#include "usp/device/driver.cuda.hpp"

#include <algorithm>

namespace usp::comm {
namespace {

/// More are refused by the driver.
constexpr std::size_t max_operations = 256;

[[nodiscard]] CUdeviceptr address_of(const Flag* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

}  // namespace

FlagOperations::FlagOperations() : call_(device::driver_call<Call>("cuStreamBatchMemOp")) {}

void FlagOperations::write(Flag* word, Flag value) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address_of(word);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
}

void FlagOperations::await(Flag* flag) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address_of(flag);
  operation.waitValue.value = 1;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
}

void FlagOperations::enqueue(device::StreamHandle stream) {
  for (std::size_t at = 0; at < operations_.size(); at += max_operations)
    device::check_driver(
        call_(stream, static_cast<unsigned>(std::min(max_operations, operations_.size() - at)),
              operations_.data() + at, 0),
        "cuStreamBatchMemOp");
  operations_.clear();
}

}  // namespace usp::comm
