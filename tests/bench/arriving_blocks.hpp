// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"
#include "usp/device/driver.cuda.hpp"
#include "usp/kernels/gate.hpp"
#include "usp/kernels/view.hpp"

#include <cstdint>
#include <cudaTypedefs.h>
#include <vector>

/// Blocks of keys and values that arrive on a GPU while a list of them is attended.
namespace usp::bench {

/// What blocks are copied from: memory of a second GPU, or of the host where there is none. Copies within a
/// GPU, whatever the call, are kernels on an H200 and wait until one that fills it ends.
class Source {
 public:
  Source(const kernels::ConstView& like, device::StreamHandle stream) {
    const i64 bytes = like.elements() * bytes_of(like.type);
    if (is_peer()) {
      device::enable_peer_access(0, 1);
      peer_ = device::DeviceBuffer(1, bytes);
    } else {
      host_ = device::PinnedBuffer(bytes);
    }
    copy(data(), like.data, bytes, stream);
  }
  [[nodiscard]] static bool is_peer() { return device::device_count() > 1; }
  /// Enqueues a copy to a view of the same form; returns its bytes.
  i64 copy_to(const kernels::ConstView& to, device::StreamHandle stream) const {
    const i64 bytes = to.elements() * bytes_of(to.type);
    copy(const_cast<std::byte*>(to.data), data(), bytes, stream);
    return bytes;
  }

 private:
  [[nodiscard]] std::byte* data() const { return peer_.data() != nullptr ? peer_.data() : host_.data(); }
  static void copy(std::byte* to, const std::byte* from, i64 bytes, device::StreamHandle stream) {
    device::check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream),
                       "cudaMemcpyAsync");
  }

  device::DeviceBuffer peer_;
  device::PinnedBuffer host_;
};

/// Copies of blocks on a stream of their own, each of which then opens a gate. The first block has arrived.
class Arrivals {
 public:
  explicit Arrivals(std::size_t blocks) : flags_(0, static_cast<i64>(blocks * flag_bytes)), gates_(blocks) {
    device::set_device_bytes(flags_.data(), 0, flags_.bytes(), stream_.get());
    stream_.synchronize();
    for (std::size_t i = 1; i < blocks; ++i)
      gates_[i].flag = reinterpret_cast<const std::uint32_t*>(flags_.data() + i * flag_bytes);
  }
  /// Of blocks that arrived before the call.
  [[nodiscard]] const kernels::Gate* open() {
    for (kernels::Gate& gate : gates_) gate.value = epoch_;
    return gates_.data();
  }
  /// Enqueues the copies of all blocks, which begin when the stream of the call has come to this point.
  /// copy(block, stream) enqueues those of one and returns its bytes.
  template <class Copy>
  [[nodiscard]] const kernels::Gate* begin(device::StreamHandle call, const Copy& copy) {
    static const auto write = device::driver_call<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
    call_.record(call);
    device::wait_for(stream_.get(), call_.get());
    begin_.record(stream_.get());
    ++epoch_, bytes_ = 0;
    for (std::size_t i = 1; i < gates_.size(); ++i) {
      bytes_ += copy(i, stream_.get());
      gates_[i].value = epoch_;
      device::check_driver(write(stream_.get(), reinterpret_cast<CUdeviceptr>(gates_[i].flag), epoch_,
                                 CU_STREAM_WRITE_VALUE_DEFAULT),
                           "cuStreamWriteValue32");
    }
    end_.record(stream_.get());
    return gates_.data();
  }
  /// Of the last copies; blocks until they have ended.
  [[nodiscard]] double gb_s() const {
    return static_cast<double>(bytes_) / device::seconds_between(begin_, end_) * 1e-9;
  }

 private:
  static constexpr std::size_t flag_bytes = 32;
  device::Stream stream_{0};
  device::DeviceBuffer flags_;
  std::vector<kernels::Gate> gates_;
  device::Event call_{0}, begin_{0, device::EventUse::timing}, end_{0, device::EventUse::timing};
  std::uint32_t epoch_ = 0;
  i64 bytes_ = 0;
};

}  // namespace usp::bench
