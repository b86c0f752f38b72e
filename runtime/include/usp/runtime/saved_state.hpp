// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace usp {

class Prepared;

/// Memory of another owner.
struct MemoryRef {
  std::byte* data = nullptr;
  i64 bytes = 0;
};

/// What one forward leaves for its backward on one rank. As many as there are forwards in flight; each is
/// used again by the next forward that is given it, which recomputation does.
class SavedState {
 public:
  /// A line of a host's cache, which heaps of tensors begin at.
  static constexpr i64 alignment = 64;

  /// Owns memory of the kernel's kind, which grows to what a forward needs. `memory` outlives this.
  explicit SavedState(kernels::Memory& memory);
  /// The same, of forwards that no backward follows: the content may be gone after each (release_scratch).
  [[nodiscard]] static SavedState of_scratch(kernels::Memory& memory);
  /// Uses the caller's memory, on a boundary of `alignment` bytes (256 on a GPU, which the executor checks):
  /// a forward that needs more is refused. The content may be moved between forward and backward (MemoryRef
  /// of the new place by `move_to`).
  explicit SavedState(MemoryRef memory);

  [[nodiscard]] i64 bytes() const { return arena_ != nullptr ? arena_->bytes() : memory_.bytes; }
  [[nodiscard]] std::byte* data() const { return arena_ != nullptr ? arena_->data() : memory_.data; }
  /// A forward has run to its end and no backward since.
  [[nodiscard]] bool ready() const { return forward_.prepared != nullptr && !forward_.spent; }
  /// The caller has copied the content to other memory (offloading).
  void move_to(MemoryRef memory);
  /// The memory holds a forward of `prepared` that this object did not see run: whoever says so answers for
  /// the inputs that backward is given.
  void assume(std::shared_ptr<const Prepared> prepared);
  /// Holds no forward any more; the memory serves the next one.
  void drop() { forward_ = {}; }
  /// Lets another backward of the same forward follow; backward only reads the content.
  void retain() { forward_.spent = false; }

 private:
  friend class Executor;
  /// The forward whose content this is.
  struct Forward {
    std::shared_ptr<const Prepared> prepared;
    std::uint64_t inputs = 0;  ///< digest of per-head lists, seed and layer
    bool spent = false;
    bool assumed = false;  ///< `inputs` is unknown
  };

  explicit SavedState(std::unique_ptr<kernels::Arena> arena);

  std::unique_ptr<kernels::Arena> arena_;
  MemoryRef memory_;
  Forward forward_;
};

}  // namespace usp
