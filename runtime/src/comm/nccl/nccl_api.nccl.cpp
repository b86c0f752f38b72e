// SPDX-License-Identifier: Apache-2.0
#include "nccl_api.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/nccl.hpp"

#include <fmt/format.h>

#include <dlfcn.h>
#include <optional>

namespace usp::comm {
namespace {

template <class Call>
[[nodiscard]] bool find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(dlsym(library, name));
  return call != nullptr;
}

[[nodiscard]] std::optional<NcclApi> open_library() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  NcclApi api;
  const bool complete =
      find(library, "ncclGetUniqueId", api.get_unique_id) &&
      find(library, "ncclCommInitRank", api.comm_init_rank) &&
      find(library, "ncclCommDestroy", api.comm_destroy) && find(library, "ncclCommAbort", api.comm_abort) &&
      find(library, "ncclCommGetAsyncError", api.comm_get_async_error) &&
      find(library, "ncclGroupStart", api.group_start) && find(library, "ncclGroupEnd", api.group_end) &&
      find(library, "ncclSend", api.send) && find(library, "ncclRecv", api.recv) &&
      find(library, "ncclGetErrorString", api.get_error_string);
  if (!complete) return std::nullopt;
  static_cast<void>(find(library, "ncclGetVersion", api.get_version));
  return api;
}

}  // namespace

const NcclApi* load_nccl() {
  static const std::optional<NcclApi> api = open_library();
  return api ? &*api : nullptr;
}

bool nccl_available() {
  return load_nccl() != nullptr;
}

std::string nccl_version() {
  const NcclApi* api = load_nccl();
  int code = 0;
  if (api == nullptr || api->get_version == nullptr || api->get_version(&code) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);  // of 2.9 and newer
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control,
                                                     const device::CallStream& compute) {
  const NcclApi* api = load_nccl();
  if (api == nullptr)
    throw EnvironmentError(
        "libnccl.so.2 cannot be loaded; install NCCL or add its folder to LD_LIBRARY_PATH");
  return make_nccl_communicator(control, &compute, *api);
}

}  // namespace usp::comm
