// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"
#include "usp/kernels/view.hpp"

#include <memory>
#include <vector>

namespace usp::test {

/// A host tensor where a kernel reads and writes it: itself on the host, else a copy in the kernel's memory.
template <class Tensor>
class Placed {
 public:
  Placed() = default;
  Placed(kernels::Memory& memory, Tensor& host) : memory_(&memory), host_(&host), view_(host.view()) {
    if (memory.stream() == nullptr) return;
    const auto bytes = static_cast<i64>(host.bytes().size());
    copy_ = memory.make_arena();
    copy_->reserve(bytes);
    memory.from_host(copy_->data(), host.bytes().data(), bytes);
    memory.synchronize();
    view_.data = copy_->data();
  }
  [[nodiscard]] kernels::View view() const { return view_; }
  void fetch() {
    if (copy_ == nullptr) return;
    memory_->to_host(host_->bytes().data(), copy_->data(), static_cast<i64>(host_->bytes().size()));
    memory_->synchronize();
  }

 private:
  kernels::Memory* memory_ = nullptr;
  Tensor* host_ = nullptr;
  std::unique_ptr<kernels::Arena> copy_;
  kernels::View view_;
};

/// The same for a plain list; null where the list is empty.
template <class T>
class PlacedList {
 public:
  PlacedList() = default;
  PlacedList(kernels::Memory& memory, const std::vector<T>& host)
      : memory_(&memory), count_(host.size()), arena_(memory.make_arena()) {
    arena_->reserve(bytes());
    if (count_ > 0) memory.from_host(arena_->data(), host.data(), bytes());
    memory.synchronize();
  }
  [[nodiscard]] T* data() const { return count_ == 0 ? nullptr : reinterpret_cast<T*>(arena_->data()); }
  [[nodiscard]] std::vector<T> fetch() const {
    std::vector<T> host(count_);
    if (count_ == 0) return host;
    memory_->to_host(host.data(), arena_->data(), bytes());
    memory_->synchronize();
    return host;
  }

 private:
  [[nodiscard]] i64 bytes() const { return static_cast<i64>(count_ * sizeof(T)); }
  kernels::Memory* memory_ = nullptr;
  std::size_t count_ = 0;
  std::unique_ptr<kernels::Arena> arena_;
};

}  // namespace usp::test
