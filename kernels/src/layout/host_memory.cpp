// SPDX-License-Identifier: Apache-2.0
#include "allocated_arena.hpp"
#include "scratch_pool.hpp"

#include "usp/kernels/memory.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace usp::kernels {
namespace {

/// The process's heap. Throws std::bad_alloc where it has no room.
class HeapAllocator final : public Allocator {
 public:
  [[nodiscard]] std::byte* allocate(i64 bytes, int /*device*/, CUstream_st* /*stream*/) override {
    return static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment));
  }
  void release(std::byte* memory, i64 /*bytes*/, int /*device*/, CUstream_st* /*stream*/) noexcept override {
    ::operator delete(memory, alignment);
  }

 private:
  static constexpr std::align_val_t alignment{static_cast<std::size_t>(buffer_alignment)};
};

class HostMemory : public Memory {
 public:
  HostMemory(Allocator& allocator, std::shared_ptr<i64> held)
      : allocator_(allocator), held_(std::move(held)) {}
  [[nodiscard]] CUstream_st* stream() const override { return nullptr; }
  [[nodiscard]] int device() const override { return -1; }
  std::unique_ptr<Arena> make_arena() override { return make_block(); }
  void release_unused() override { allocator_.release_unused(); }
  [[nodiscard]] i64 held_bytes() const override { return held_ == nullptr ? 0 : *held_; }
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
  /// A logit beyond the type becomes its largest value, which outweighs every score as well; infinite, it
  /// would make differences without a value.
  void fill_heads(View to, const double* values) override {
    const double most = to.type == DType::fp64 ? std::numeric_limits<double>::max()
                                               : static_cast<double>(std::numeric_limits<float>::max());
    for (i64 head = to.heads.begin; head < to.heads.end; ++head) {
      View one = to;
      one.data = to.at(0, 0, head);
      one.heads = {head, head + 1};
      usp::kernels::fill(one, std::min(values[head], most));
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

 protected:
  [[nodiscard]] std::unique_ptr<AllocatedArena> make_block() {
    return std::make_unique<AllocatedArena>(ArenaSource{.allocator = &allocator_, .held_bytes = held_});
  }

 private:
  Allocator& allocator_;
  std::shared_ptr<i64> held_;  ///< null: shared by ranks, not counted
};

/// One rank's, of the caller's allocator.
class RankMemory final : public HostMemory {
 public:
  explicit RankMemory(Allocator& allocator) : HostMemory(allocator, std::make_shared<i64>(0)) {}
  std::unique_ptr<Arena> make_scratch() override { return scratch_.make(make_block()); }
  void release_scratch() override { scratch_.release(); }

 private:
  ScratchPool<AllocatedArena> scratch_;
};

}  // namespace

Memory& host_memory() {
  static HeapAllocator heap;
  static HostMemory memory(heap, nullptr);
  return memory;
}

std::unique_ptr<Memory> make_host_memory(Allocator& allocator) {
  return std::make_unique<RankMemory>(allocator);
}

}  // namespace usp::kernels
