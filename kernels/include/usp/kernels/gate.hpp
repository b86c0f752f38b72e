// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Gates: how a call over a list of blocks of keys learns that a block has arrived, and how it ends when one
/// never does; and how it signals that a block's gradients are complete. C++17, since kernels for GPUs read
/// it.
namespace usp::kernels {

/// A block may be read once its flag has reached a value. The transfer sets the flag after its last byte is
/// visible to the reader: on the host with a release store, on a GPU with a stream write-value behind the
/// copy, on the stream of the copy, with its default flags.
///
/// `flag` lies where the kernel works: host memory, or for a kernel of a GPU memory that the GPU reads.
/// Its own memory is right where a kernel waits inside a launch, since every block of threads polls (flags of
/// different blocks 32 bytes apart); page-locked host memory works too. It is never reset: `value` is the
/// epoch of the pass, grows by one per pass and wraps at 2^32.
struct Gate {
  const std::uint32_t* flag = nullptr;  ///< null: the block has arrived
  std::uint32_t value = 0;
};

/// Whether a flag that holds `seen` has reached `value`: less than 2^31 behind it.
[[nodiscard]] constexpr bool has_reached(std::uint32_t seen, std::uint32_t value) {
  return static_cast<std::int32_t>(seen - value) >= 0;
}

/// A call over a list signals that the gradients of a block are complete: it sets the flag to the value,
/// once, when the block's dk and dv are final and visible to the whole system, while later blocks may be
/// computed or have yet to arrive. A call that has given up a wait sets no flag any more. `flag` lies where
/// gates may lie: page-locked host memory too. Whoever awaits it says how values follow one another.
struct Completion {
  std::uint32_t* flag = nullptr;  ///< null: the call sets none
  std::uint32_t value = 0;
};

/// When a wait at a gate is given up. What the call writes is undefined then, and `fault` says why; nothing
/// is thrown. All words lie where the gates may lie; on a GPU, which looks at them every few milliseconds,
/// page-locked host memory lets the host set `stop` and read `fault` whatever the streams do.
struct GateWatch {
  const std::uint32_t* stop = nullptr;  ///< not 0: all waits end; null: nothing stops them
  std::int64_t limit_ns = 0;            ///< of one wait, by the clock of what waits; 0: none
  /// A GateFault as a word, written by the first wait that is given up; 0 before the call. A word that is not
  /// 0 ends all waits. Null: nothing is said.
  std::uint32_t* fault = nullptr;
};

/// Why a wait was given up, and the block of the list that it was for.
struct GateFault {
  enum class Reason : std::uint32_t { none, late, stopped };

  Reason reason = Reason::none;
  int block = 0;

  [[nodiscard]] static constexpr GateFault of(std::uint32_t word) {
    return {static_cast<Reason>(word >> 16), static_cast<int>(word & 0xffff)};
  }
  [[nodiscard]] constexpr std::uint32_t word() const {
    return static_cast<std::uint32_t>(reason) << 16 | static_cast<std::uint32_t>(block);
  }
};

}  // namespace usp::kernels
