// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/comm/threads.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>

using usp::capi::given;
using usp::capi::guarded;
using usp::capi::job_of;
using usp::capi::require;

namespace {

/// The callback may be C++: what it throws gets a text that says what to do.
int call(usp_rank_function function, usp_comm& comm, void* user) {
  try {
    return function(&comm, user);
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw usp::UsageError(
        "the rank function threw something that is no std::exception; return a status instead");
  }
}

}  // namespace

usp_status usp_run_threads(int32_t ranks, usp_rank_function function, void* user) {
  return usp_run_threads_with(ranks, nullptr, function, user);
}

usp_status usp_run_threads_with(int32_t ranks, const usp_comm_options* options, usp_rank_function function,
                                void* user) {
  return guarded([&] {
    require(function != nullptr, "function is null; it must be given");
    require(ranks >= 1 && ranks <= (1 << 16), fmt::format("ranks is {}; it must be 1 to 65536", ranks));
    usp::comm::run_threads(ranks, usp::capi::options_of(options), [&](usp::comm::Communicator& communicator) {
      usp::capi::forget();  // rank 0 runs on the caller's thread
      usp_comm comm{&communicator, nullptr};
      const int status = call(function, comm, user);
      if (status != USP_OK) usp::capi::throw_returned(communicator.rank(), status);
    });
  });
}

usp_status usp_comm_create_serial(usp_comm** comm) {
  return guarded([&] {
    given(comm, "comm");
    auto made = std::make_unique<usp_comm>();
    made->owned = usp::comm::make_serial_communicator();
    made->communicator = made->owned.get();
    *comm = made.release();
  });
}

void usp_comm_destroy(usp_comm* comm) {
  if (comm != nullptr && (comm->owned || comm->launched)) delete comm;
}

int32_t usp_comm_rank(const usp_comm* comm) {
  return comm == nullptr ? -1 : comm->communicator->rank();
}

int32_t usp_comm_size(const usp_comm* comm) {
  return comm == nullptr ? -1 : comm->communicator->size();
}

usp_status usp_comm_barrier(usp_comm* comm) {
  return guarded([&] { given(comm, "comm").communicator->barrier(); });
}

namespace {

template <class T>
usp_status all_reduce(usp_comm* comm, T* data, int64_t count) {
  return guarded([&] {
    given(comm, "comm");
    require(count >= 0, "count is negative");
    require(data != nullptr || count == 0, "data is null; it must be given");
    comm->communicator->all_reduce_sum(data, count);
  });
}

}  // namespace

usp_status usp_comm_all_reduce_f32(usp_comm* comm, float* data, int64_t count) {
  return all_reduce(comm, data, count);
}

usp_status usp_comm_all_reduce_f64(usp_comm* comm, double* data, int64_t count) {
  return all_reduce(comm, data, count);
}

usp_status usp_comm_all_gather(usp_comm* comm, const void* mine, void* all, int64_t bytes) {
  return guarded([&] {
    usp::comm::Communicator& communicator = *given(comm, "comm").communicator;
    require(bytes >= 0 && bytes <= INT64_MAX / communicator.size(),
            fmt::format("bytes is {}; it must be 0 or more, and that of all {} ranks within 64 bits", bytes,
                        communicator.size()));
    require((mine != nullptr && all != nullptr) || bytes == 0,
            std::string(mine == nullptr ? "mine" : "all") + " is null; it must be given");
    communicator.all_gather(mine, all, bytes);
  });
}

usp_status usp_comm_broadcast(usp_comm* comm, void* data, int64_t bytes, int32_t root) {
  return guarded([&] {
    usp::comm::Communicator& communicator = *given(comm, "comm").communicator;
    require(bytes >= 0, fmt::format("bytes is {}; it must be 0 or more", bytes));
    require(data != nullptr || bytes == 0, "data is null; it must be given");
    require(root >= 0 && root < communicator.size(),
            fmt::format("root is {}; the communicator has ranks 0 to {}", root, communicator.size() - 1));
    communicator.broadcast(data, bytes, root);
  });
}

usp_status usp_comm_abort(usp_comm* comm, const char* reason) {
  return guarded([&] {
    usp::comm::Communicator& job = job_of(given(comm, "comm"));
    given(reason, "reason");
    const int rank = job.rank();
    const usp::comm::CommunicationFault fault{
        "abort", -1, rank, {rank}, fmt::format("rank {} ended the job: {}", rank, reason)};
    job.abort(fault);
    comm->communicator->abort(fault);  // a group of one rank has no connection to the job
  });
}
