// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/call_stream.hpp"

#include <memory>
#include <nccl.h>

namespace usp::comm {

class Communicator;

/// The calls of NCCL that this project makes; replaced in tests.
struct NcclApi {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetVersion) get_version = nullptr;  ///< null: it does not say
};

/// From libnccl.so.2; null where it cannot be loaded or lacks a call.
[[nodiscard]] const NcclApi* load_nccl();

/// `api` outlives the communicator. `compute` may be null as long as nothing is posted.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control,
                                                                   const device::CallStream* compute,
                                                                   const NcclApi& api);

}  // namespace usp::comm
