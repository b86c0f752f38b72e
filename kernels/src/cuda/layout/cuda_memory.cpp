// SPDX-License-Identifier: Apache-2.0
#include "../../layout/allocated_arena.hpp"
#include "../../layout/scratch_pool.hpp"
#include "../gates/await_gate.hpp"
#include "strided_copy.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <optional>

namespace usp::kernels {
namespace cuda {
namespace {

/// Plain device memory, which other processes may open.
class DeviceArena final : public Arena {
 public:
  DeviceArena(int device, std::shared_ptr<i64> held) : device_(device), held_(std::move(held)) {}
  ~DeviceArena() override { *held_ -= buffer_.bytes(); }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  void reserve(i64 bytes) override {
    if (bytes <= buffer_.bytes()) return;
    // Freed first, so that the peak is the greater of the two; cudaFree waits for what still reads it.
    *held_ -= buffer_.bytes();
    buffer_ = device::DeviceBuffer();
    buffer_ = device::DeviceBuffer(device_, bytes);
    *held_ += bytes;
  }
  std::byte* data() const override { return buffer_.data(); }
  i64 bytes() const override { return buffer_.bytes(); }

 private:
  device::DeviceBuffer buffer_;
  int device_;
  std::shared_ptr<i64> held_;  ///< by all arenas of a memory
};

/// Memory of the caller's allocator, which orders the reuse of a block by the stream it was taken for.
class StreamArena final : public Arena {
 public:
  StreamArena(device::CallStream& stream, Allocator& allocator, std::shared_ptr<i64> held)
      : stream_(stream), allocator_(allocator), held_(std::move(held)) {}
  ~StreamArena() override {
    try {
      stream_.wait_for_calls();
    } catch (const EnvironmentError&) {
      // The driver has gone, and with it all work.
    }
  }
  StreamArena(const StreamArena&) = delete;
  StreamArena& operator=(const StreamArena&) = delete;
  void reserve(i64 bytes) override {
    if (bytes <= this->bytes()) return;
    release();  // first, so that the peak is the greater of the two
    taken_for_ = stream_.get();
    block_ = std::make_unique<AllocatedArena>(ArenaSource{&allocator_, stream_.device(), taken_for_, held_});
    block_->reserve(bytes);
  }
  std::byte* data() const override { return block_ == nullptr ? nullptr : block_->data(); }
  i64 bytes() const override { return block_ == nullptr ? 0 : block_->bytes(); }
  void release() {
    if (block_ != nullptr && taken_for_ != stream_.get()) stream_.synchronize();
    block_.reset();
  }

 private:
  device::CallStream& stream_;
  Allocator& allocator_;
  std::shared_ptr<i64> held_;
  device::StreamHandle taken_for_ = nullptr;
  std::unique_ptr<AllocatedArena> block_;
};

class CudaMemory final : public Memory {
 public:
  CudaMemory(device::CallStream& stream, Allocator* allocator)
      : stream_(stream), device_(stream.device()), allocator_(allocator) {}
  CUstream_st* stream() const override { return stream_.get(); }
  device::CallStream* call_stream() const override { return &stream_; }
  int device() const override { return device_; }
  std::unique_ptr<Arena> make_arena() override {
    if (allocator_ == nullptr) return std::make_unique<DeviceArena>(device_, held_);
    return std::make_unique<StreamArena>(stream_, *allocator_, held_);
  }
  std::unique_ptr<Arena> make_scratch() override {
    if (allocator_ == nullptr) return make_arena();
    return scratch_.make(std::make_unique<StreamArena>(stream_, *allocator_, held_));
  }
  void release_scratch() override { scratch_.release(); }
  void release_unused() override {
    if (allocator_ != nullptr) allocator_->release_unused();
  }
  i64 held_bytes() const override { return *held_; }

  void copy_region(ConstView from, ViewRegion source, View to, ViewRegion target, WriteMode mode) override {
    const device::DeviceScope scope(device_);
    launch_copy(region_copy(from, source, to, target, mode), stream());
  }
  /// By a copy engine: a kernel would wait until one that fills the GPU ends.
  void copy_beside(ConstView from, View to) override {
    expects(from.type == to.type && from.elements() == to.elements(), "buffers of one shape");
    const device::DeviceScope scope(device_);
    if (!beside_) beside_.emplace(device_);
    beside_->begin.record(stream());
    device::wait_for(beside_->stream.get(), beside_->begin.get());
    device::check_cuda(
        cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(from.elements() * bytes_of(from.type)),
                        cudaMemcpyDefault, beside_->stream.get()),
        "a copy beside other work");
    beside_->open = true;
  }
  void join_copies() override {
    if (!beside_ || !beside_->open) return;
    beside_->open = false;
    beside_->end.record(beside_->stream.get());
    device::wait_for(stream(), beside_->end.get());
  }
  std::byte* pack_region(ConstView from, ViewRegion region, DType wire, std::byte* payload) override {
    const View to = payload_view(payload, wire, from.batch, region, from.width);
    copy_region(from, region, to, {{0, to.rows}, to.heads}, WriteMode::overwrite);
    return payload + to.elements() * bytes_of(wire);
  }
  const std::byte* unpack_region(const std::byte* payload, DType wire, View to, ViewRegion region,
                                 WriteMode mode) override {
    const ConstView from = payload_view(payload, wire, to.batch, region, to.width);
    copy_region(from, {{0, from.rows}, from.heads}, to, region, mode);
    return payload + from.elements() * bytes_of(wire);
  }
  void fill(View to, double value) override {
    const device::DeviceScope scope(device_);
    launch_fill(to, value, stream());
  }
  void fill_heads(View to, const double* values) override {
    const device::DeviceScope scope(device_);
    launch_fill_heads(to, values, stream());
  }

  void set_bytes(std::byte* to, int value, i64 bytes) override {
    const device::DeviceScope scope(device_);
    device::set_device_bytes(to, value, bytes, stream());
  }
  void from_host(std::byte* to, const void* host, i64 bytes) override {
    const device::DeviceScope scope(device_);
    device::copy_to_device(to, host, bytes, stream());
  }
  void to_host(void* host, const std::byte* from, i64 bytes) override {
    const device::DeviceScope scope(device_);
    device::copy_to_host(host, from, bytes, stream());
  }
  bool await(const Gate& gate, int block, const GateWatch& watch, const Progress& /*progress*/) override {
    if (gate.flag == nullptr) return true;
    const device::DeviceScope scope(device_);
    launch_await(gate, block, watch, stream());
    return true;
  }
  void complete(const Completion& completion, const GateWatch& watch) override {
    if (completion.flag == nullptr) return;
    const device::DeviceScope scope(device_);
    launch_complete(completion, watch, stream());
  }
  void synchronize() override {
    if (beside_) beside_->stream.synchronize();
    stream_.synchronize();
  }

 private:
  struct Beside {
    explicit Beside(int device) : stream(device), begin(device), end(device) {}
    device::Stream stream;
    device::Event begin, end;
    bool open = false;  ///< copies that nothing has joined
  };
  device::CallStream& stream_;
  int device_;
  Allocator* allocator_;          ///< null: plain device memory
  std::optional<Beside> beside_;  ///< made with the first copy
  std::shared_ptr<i64> held_ = std::make_shared<i64>(0);
  ScratchPool<StreamArena> scratch_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Memory> make_cuda_memory(device::CallStream& stream) {
  return std::make_unique<cuda::CudaMemory>(stream, nullptr);
}

std::unique_ptr<Memory> make_cuda_memory(device::CallStream& stream, Allocator& allocator) {
  return std::make_unique<cuda::CudaMemory>(stream, &allocator);
}

}  // namespace usp::kernels
