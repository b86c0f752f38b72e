// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_api.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

/// NCCL's failures without NCCL or a GPU: a table of calls that fail.
namespace usp::comm {
namespace {

std::atomic<int> aborts{0};
std::atomic<bool> broken{false};

ncclResult_t give_id(ncclUniqueId*) {
  return ncclSuccess;
}
ncclResult_t make_comm(ncclComm_t* comm, int, ncclUniqueId, int) {
  static int memory;
  *comm = reinterpret_cast<ncclComm_t>(&memory);
  return ncclSuccess;
}
ncclResult_t refuse_comm(ncclComm_t*, int, ncclUniqueId, int) {
  return ncclInvalidUsage;
}
ncclResult_t destroy(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t abort_comm(ncclComm_t) {
  ++aborts;
  return ncclSuccess;
}
ncclResult_t async_error(ncclComm_t, ncclResult_t* state) {
  *state = broken ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
const char* words(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "invalid usage";
}

[[nodiscard]] NcclApi table() {
  NcclApi api;
  api.get_unique_id = give_id;
  api.comm_init_rank = make_comm;
  api.comm_destroy = destroy;
  api.comm_abort = abort_comm;
  api.comm_get_async_error = async_error;
  api.get_error_string = words;
  return api;
}

TEST(NcclFaults, ARefusedStartEndsTheJobWithItsReason) {
  NcclApi api = table();
  api.comm_init_rank = refuse_comm;
  try {
    run_threads(2, {}, [&](Communicator& control) { (void)make_nccl_communicator(control, nullptr, api); });
    FAIL();
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("ncclCommInitRank failed: invalid usage"), std::string::npos)
        << error.what();
  }
}

TEST(NcclFaults, AnErrorSeenLaterAbortsTheCommunicatorsOfAllRanks) {
  const NcclApi api = table();
  aborts = 0;
  broken = false;
  try {
    run_threads(3, {}, [&](Communicator& control) {
      const auto nccl = make_nccl_communicator(control, nullptr, api);
      nccl->progress();
      control.barrier();
      broken = true;
      nccl->progress();
    });
    FAIL();
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("remote process exited"), std::string::npos) << error.what();
  }
  EXPECT_GE(aborts, 1);
}

TEST(NcclFaults, OneRankNeedsNoCommunicator) {
  NcclApi api = table();
  api.comm_init_rank = refuse_comm;
  run_threads(1, {}, [&](Communicator& control) {
    EXPECT_NO_THROW(make_nccl_communicator(control, nullptr, api)->progress());
  });
}

}  // namespace
}  // namespace usp::comm
