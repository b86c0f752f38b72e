// SPDX-License-Identifier: Apache-2.0
#include "shared_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace usp::comm {
namespace {

[[nodiscard]] std::string random_name() {
  std::random_device random;
  return fmt::format("/usp-{:08x}{:08x}{:08x}", random(), random(), random());
}

/// What one rank found; all ranks go on only where all have the memory.
[[nodiscard]] std::string map(const std::string& name, bool create, std::size_t bytes, std::byte*& data) {
  const int file = shm_open(name.c_str(), create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, S_IRUSR | S_IWUSR);
  if (file < 0) return fmt::format("shm_open failed: {}", std::strerror(errno));
  std::string why;
  if (create && ftruncate(file, static_cast<off_t>(bytes)) != 0)
    why = fmt::format("ftruncate failed: {}", std::strerror(errno));
  if (why.empty()) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
      why = fmt::format("mmap failed: {}", std::strerror(errno));
    else
      data = static_cast<std::byte*>(memory);
  }
  close(file);
  return why;
}

}  // namespace

HostSegment::HostSegment(Communicator& control, std::size_t bytes) : bytes_(bytes) {
  std::array<char, 64> name{};
  std::string why;
  const bool root = control.rank() == 0;
  if (root) {
    const std::string chosen = random_name();
    std::copy(chosen.begin(), chosen.end(), name.begin());
    why = map(chosen, true, bytes_, data_);
  }
  control.broadcast(name.data(), static_cast<i64>(name.size()), 0);
  if (!root) why = map(name.data(), false, bytes_, data_);
  if (why.empty() &&
      cudaHostRegister(data_, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped) != cudaSuccess)
    why = fmt::format("cudaHostRegister failed: {}", cudaGetErrorString(cudaGetLastError()));
  const char mine = why.empty() ? 1 : 0;
  std::vector<char> all(static_cast<std::size_t>(control.size()));
  control.all_gather(&mine, all.data(), 1);
  if (root) shm_unlink(name.data());
  if (std::find(all.begin(), all.end(), 0) == all.end()) return;
  if (mine == 1) cudaHostUnregister(data_);
  if (data_ != nullptr) munmap(data_, bytes_);
  throw EnvironmentError(
      fmt::format("copy engines need {} bytes of shared memory between the ranks of a host, and {}; give "
                  "the job a /dev/shm that its ranks share, or use NCCL",
                  bytes_, why.empty() ? "another rank has none" : why));
}

HostSegment::~HostSegment() {
  if (cudaHostUnregister(data_) != cudaSuccess) cudaGetLastError();
  munmap(data_, bytes_);
}

void SharedFlags::reserve(Communicator& control, std::size_t slots) {
  const auto mine = static_cast<i64>(slots);
  std::vector<i64> all(ranks_);
  control.all_gather(&mine, all.data(), sizeof mine);
  const auto most = static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
  if (!rooms_.empty() && most <= rooms_.back().slots) return;
  rooms_.emplace_back(control, ranks_, std::max<std::size_t>(64, 2 * most));
}

void SharedFlags::set_all(int owner) const {
  for (const Room& room : rooms_) {
    Flag* const flags = flags_of(room, owner);
    for (std::size_t i = 0; i < 2 * ranks_ * room.slots; ++i)
      std::atomic_ref<Flag>(flags[i]).store(1, std::memory_order_relaxed);
  }
}

}  // namespace usp::comm
