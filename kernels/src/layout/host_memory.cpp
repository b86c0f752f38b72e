// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/memory.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

namespace usp::kernels {
namespace {

constexpr i64 alignment = 256;  // suits SIMD and pages

class HostArena final : public Arena {
 public:
  void reserve(i64 bytes) override {
    if (bytes <= bytes_) return;
    memory_.resize(static_cast<std::size_t>(bytes + alignment));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    aligned_ = memory_.data() + (alignment - static_cast<i64>(address % alignment)) % alignment;
    bytes_ = bytes;
  }
  [[nodiscard]] std::byte* data() const override { return aligned_; }
  [[nodiscard]] i64 bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* aligned_ = nullptr;
  i64 bytes_ = 0;
};

class HostMemory final : public Memory {
 public:
  [[nodiscard]] CUstream_st* stream() const override { return nullptr; }
  [[nodiscard]] int device() const override { return -1; }
  std::unique_ptr<Arena> make_arena() override { return std::make_unique<HostArena>(); }
  void copy_region(ConstView from, ViewRegion source, View to, ViewRegion target, WriteMode mode) override {
    usp::kernels::copy_region(from, source, to, target, mode);
  }
  std::byte* pack_region(ConstView from, ViewRegion region, DType wire, std::byte* payload) override {
    return usp::kernels::pack_region(from, region, wire, payload);
  }
  const std::byte* unpack_region(const std::byte* payload, DType wire, View to, ViewRegion region,
                                 WriteMode mode) override {
    return usp::kernels::unpack_region(payload, wire, to, region, mode);
  }
  void fill(View to, double value) override { usp::kernels::fill(to, value); }
  void fill_heads(View to, const double* values) override {
    for (i64 head = to.heads.begin; head < to.heads.end; ++head) {
      View one = to;
      one.data = to.at(0, 0, head);
      one.heads = {head, head + 1};
      usp::kernels::fill(one, values[head]);
    }
  }
  // Nothing may have no address, which memset and memcpy do not take.
  void set_bytes(std::byte* to, int value, i64 bytes) override {
    if (bytes > 0) std::memset(to, value, static_cast<std::size_t>(bytes));
  }
  void from_host(std::byte* to, const void* host, i64 bytes) override {
    if (bytes > 0) std::memcpy(to, host, static_cast<std::size_t>(bytes));
  }
  void to_host(void* host, const std::byte* from, i64 bytes) override {
    if (bytes > 0) std::memcpy(host, from, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace usp::kernels
