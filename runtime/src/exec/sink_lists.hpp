// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"
#include "usp/kernels/view.hpp"

#include <memory>

namespace usp {

/// Sinks and their gradients as kernels take them, in fp64, where the caller's have another type.
class SinkLists {
 public:
  /// One value per query head in the kernel's memory; data null: none.
  template <class Byte>
  struct List {
    Byte* data = nullptr;
    DType type = DType::fp64;
  };

  explicit SinkLists(kernels::Memory& memory) : memory_(memory), lists_(memory.make_arena()) {}

  [[nodiscard]] const double* read(List<const std::byte> sink, int heads);
  /// Where kernels add gradients that finish_sum() adds to `d_sink`.
  [[nodiscard]] double* sum_for(List<std::byte> d_sink, int heads);
  void finish_sum();

 private:
  [[nodiscard]] kernels::View list(int number, int heads);

  kernels::Memory& memory_;
  std::unique_ptr<kernels::Arena> lists_;
  kernels::View sum_, target_;  ///< data null: no sum is under way
};

}  // namespace usp
