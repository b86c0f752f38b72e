// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../exec/require.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"
#include "usp/comm/mesh_communicator.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/allocator.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/usp.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct usp_plan {
  usp::PlanLayer layer;
  std::vector<std::int64_t> replicated_q, replicated_k;  ///< begin, end pairs of the plan's ranges
};

struct usp_comm {
  usp::comm::Communicator* communicator = nullptr;
  std::unique_ptr<usp::comm::Communicator> owned;  ///< null: of `launched`, or lent
  std::unique_ptr<usp::comm::LaunchedJob> launched{};
  usp::comm::Communicator* job = nullptr;  ///< of a group: that of all ranks
};

struct usp_attention {
  usp_attention(const usp_plan& plan, usp::comm::Communicator& communicator,
                const usp::ExecutorOptions& options);
  usp::PlanLayer layer;
  std::unique_ptr<usp::kernels::AttentionKernel> kernel;
  usp::AttentionOperator attention;
  bool has_batch = false;
};

namespace usp::capi {

/// The callbacks of a usp_allocator.
class CallbackAllocator final : public kernels::Allocator {
 public:
  explicit CallbackAllocator(const usp_allocator& callbacks) : callbacks_(callbacks) {}
  [[nodiscard]] std::byte* allocate(i64 bytes, int device, CUstream_st* stream) override {
    return static_cast<std::byte*>(callbacks_.allocate(callbacks_.context, bytes, device, stream));
  }
  void release(std::byte* memory, i64 bytes, int device, CUstream_st* stream) noexcept override {
    callbacks_.release(callbacks_.context, memory, bytes, device, stream);
  }
  void release_unused() noexcept override {
    if (callbacks_.release_unused != nullptr) callbacks_.release_unused(callbacks_.context);
  }

 private:
  usp_allocator callbacks_;
};

}  // namespace usp::capi

struct usp_engine {
  usp_engine(usp::comm::Communicator& world, const usp::Mesh& mesh, const usp_engine_desc& desc);
  usp::capi::CallbackAllocator allocator;
  std::optional<usp::device::CallStream> stream;     ///< on a GPU
  std::unique_ptr<usp::kernels::Memory> own_memory;  ///< null: host_memory()
  std::unique_ptr<usp::kernels::AttentionKernel> kernel;
  usp::comm::MeshCommunicator ranks;
  std::unique_ptr<usp::comm::Communicator>
      batch_group;  ///< null for one rank: batches agree beside running layers
  usp::Batches batches;
  usp::Executor executor;
  bool forward_only;
  usp_comm ring, ulysses;  ///< lent
  std::string notes;       ///< what usp_engine_notes returned
  /// Of forwards in flight, by id, in the callers' memory.
  std::map<std::uint64_t, usp::SavedState> forwards;
  std::uint64_t last_forward = 0;
  usp::SavedState unsaved;  ///< of forwards that no backward follows
};

struct usp_batch {
  std::shared_ptr<const usp::Batch> batch;
  std::uint64_t dropout_seed = 0;
  bool forward_only = false;  ///< as its engine
};

namespace usp::capi {

/// Remembers the exception being handled as this thread's last error and gives its status.
usp_status report() noexcept;
/// Forgets this thread's last error.
void forget() noexcept;
/// The error of a rank function that returned `status`: what this thread reported last, if that was it.
[[noreturn]] void throw_returned(int rank, int status);

/// Runs what a C function does; no exception leaves it.
template <class F>
usp_status guarded(const F& body) noexcept {
  try {
    body();
    return USP_OK;
  } catch (...) {
    return report();
  }
}

using usp::require;

template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(std::string(name) + " is null; it must be given");
  return *pointer;
}

/// Refuses sizes that no version of a struct up to this library's had. `first` is the size of the first
/// version.
inline void check_size(std::size_t size, std::size_t first, std::size_t own, const char* name) {
  require(
      size >= first,
      fmt::format(
          "{}.size is {}, less than the {} bytes of its first version; set it to sizeof of the struct, which "
          "init functions do",
          name, size, first));
  require(
      size <= own,
      fmt::format("{}.size is {}, this library knows {} bytes; load the library that goes with the header",
                  name, size, own));
}

/// A struct of this library's size from a caller's, which may be shorter: what that lacks has its default.
template <class T>
T taken(const T* from, std::size_t first, const T& defaults, const char* name) {
  given(from, name);
  check_size(from->size, first, sizeof(T), name);
  T own = defaults;
  std::memcpy(&own, from, from->size);
  own.size = sizeof(T);
  return own;
}

/// The other way: as much as the caller has room for.
template <class T>
void put(const T& own, std::size_t first, T* to, const char* name) {
  given(to, name);
  const std::size_t size = to->size;
  check_size(size, first, sizeof(T), name);
  std::memcpy(to, &own, size);
  to->size = size;
}

/// What the init functions do.
template <class T>
void start(T* to, std::size_t size, std::size_t first, const T& defaults, const char* name) {
  given(to, name);
  check_size(size, first, sizeof(T), name);
  std::memcpy(to, &defaults, size);
  to->size = size;
}

/// An enumerator by its number in usp.h, which is that of the C++ type.
template <class E>
E enumerator(std::int32_t value, E last, const char* name) {
  require(value >= 0 && value <= static_cast<std::int32_t>(last),
          fmt::format("{} is {}; usp.h lists 0 to {}", name, value, static_cast<int>(last)));
  return static_cast<E>(value);
}

/// A backend by its number in usp.h, which is its place in backends().
[[nodiscard]] inline Backend listed_backend(std::int32_t value, const char* name) {
  return backends()[static_cast<std::size_t>(
      enumerator(value, static_cast<std::int32_t>(backends().size()) - 1, name))];
}

/// The communicator of all ranks.
inline comm::Communicator& job_of(const usp_comm& comm) {
  return comm.job == nullptr ? *comm.communicator : *comm.job;
}

/// How ranks wait and meet; null: the defaults.
[[nodiscard]] comm::CommOptions options_of(const usp_comm_options* options);

/// The kernel behind every usp_attention.
[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make_kernel();

}  // namespace usp::capi
