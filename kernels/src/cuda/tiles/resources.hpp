// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "strided.hpp"
#include "work_list.hpp"

#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/memory.hpp"

#include <array>
#include <memory>

namespace usp::kernels::tiles {

/// Operands that scratch memory may hold a copy of.
enum class Role { q, k, v, d_o, dq, count };

/// Whether copies of 16 bytes can read the rows of a view, which is of the type `io`.
[[nodiscard]] bool is_read_in_place(const ConstView& view, DType io);

/// What all steps of a kernel share: memory of tables, scratch that each step uses in turn, limits of the
/// GPU.
class Resources {
 public:
  /// Throws EnvironmentError for a GPU before compute capability 8.0.
  Resources(Memory& memory, const CudaKernelOptions& options);

  [[nodiscard]] Memory& memory() { return memory_; }
  [[nodiscard]] TablePool& tables() { return tables_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool deterministic() const { return options_.deterministic; }
  [[nodiscard]] int shared_per_block() const { return shared_per_block_; }
  [[nodiscard]] int shared_per_sm() const { return shared_per_sm_; }
  /// Throws EnvironmentError where a block of the GPU has less.
  void need_shared(int bytes) const;

  /// The view, or where 16-byte copies cannot read it, a copy of its heads in scratch, the width filled up.
  /// make_room() of a view of the same form came before.
  [[nodiscard]] ConstView readable(const ConstView& view, DType io, Range heads, Role role);
  /// The same, as the kernels read it.
  [[nodiscard]] Strided input(const ConstView& view, DType io, Range heads, Role role) {
    return strided(readable(view, io, heads, role));
  }
  void make_room(const ConstView& view, DType io, Range heads, Role role);

  void reserve(Role role, i64 bytes) { arena(role).reserve(bytes); }
  [[nodiscard]] std::byte* scratch(Role role) { return arena(role).data(); }

 private:
  [[nodiscard]] Arena& arena(Role role) { return *scratch_[static_cast<std::size_t>(role)]; }

  Memory& memory_;
  CudaKernelOptions options_;
  TablePool tables_;
  int device_ = 0, shared_per_block_ = 0, shared_per_sm_ = 0;
  std::array<std::unique_ptr<Arena>, static_cast<std::size_t>(Role::count)> scratch_;
};

}  // namespace usp::kernels::tiles
