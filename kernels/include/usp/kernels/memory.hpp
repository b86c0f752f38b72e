// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/allocator.hpp"
#include "usp/kernels/gate.hpp"
#include "usp/kernels/regions.hpp"

#include <memory>

struct CUstream_st;

namespace usp::device {
class CallStream;
}  // namespace usp::device

namespace usp::kernels {

struct Progress;

/// Memory that only grows; its content does not survive growth. reserve() throws EnvironmentError where there
/// is no room.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual void reserve(i64 bytes) = 0;
  [[nodiscard]] virtual std::byte* data() const = 0;  ///< on a boundary of 256 bytes
  [[nodiscard]] virtual i64 bytes() const = 0;
};

/// One kind of memory, and the copies inside it: regions.hpp for the memory that a kernel works in. On the
/// host every call is done when it returns; on a GPU it is enqueued on the memory's stream, and order on that
/// stream is order of effect. Not thread-safe: one per rank.
class Memory {
 public:
  virtual ~Memory() = default;
  /// The stream that orders the copies now; null on the host.
  [[nodiscard]] virtual CUstream_st* stream() const = 0;
  /// The same, as calls set it; null on the host.
  [[nodiscard]] virtual device::CallStream* call_stream() const { return nullptr; }
  /// The GPU's ordinal; -1 on the host.
  [[nodiscard]] virtual int device() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Arena> make_arena() = 0;
  /// An arena for what no call leaves to the next one; the memory outlives it.
  [[nodiscard]] virtual std::unique_ptr<Arena> make_scratch() { return make_arena(); }
  /// What those arenas hold of the caller's allocator goes back to it, behind what is enqueued; data() takes
  /// as much again. Nothing where the memory has no allocator of the caller's.
  virtual void release_scratch() {}
  /// Allocator::release_unused() where the memory has an allocator of the caller's.
  virtual void release_unused() {}
  /// Bytes of all arenas now; 0 in host_memory(), which ranks share.
  [[nodiscard]] virtual i64 held_bytes() const { return 0; }

  virtual void copy_region(ConstView from, ViewRegion source, View to, ViewRegion target, WriteMode mode) = 0;
  /// Copies a packed buffer to another of its shape, beside what the stream does next; join_copies() orders
  /// what comes after it behind all such copies. Otherwise as copy_region().
  virtual void copy_beside(ConstView from, View to) {
    copy_region(from, {{0, from.rows}, from.heads}, to, {{0, to.rows}, to.heads}, WriteMode::overwrite);
  }
  virtual void join_copies() {}
  virtual std::byte* pack_region(ConstView from, ViewRegion region, DType wire, std::byte* payload) = 0;
  virtual const std::byte* unpack_region(const std::byte* payload, DType wire, View to, ViewRegion region,
                                         WriteMode mode) = 0;
  virtual void fill(View to, double value) = 0;
  /// values[h] for every row of (global) head h; `values` lies in this memory.
  virtual void fill_heads(View to, const double* values) = 0;

  virtual void set_bytes(std::byte* to, int value, i64 bytes) = 0;
  virtual void from_host(std::byte* to, const void* host, i64 bytes) = 0;
  virtual void to_host(void* host, const std::byte* from, i64 bytes) = 0;
  /// What comes next starts once the gate is open or the wait is given up (GateWatch); `block` is for the
  /// report of that. The host polls, and calls `progress` between polls; a GPU waits on the stream. False:
  /// the wait was given up, which the host alone knows by then.
  virtual bool await(const Gate& gate, int block, const GateWatch& watch, const Progress& progress);
  /// Sets the flag once all that came before is visible to the whole system; not behind a wait that was given
  /// up. On a GPU enqueued, by one thread of a kernel, as it asks the watch then.
  virtual void complete(const Completion& completion, const GateWatch& watch);
  /// Blocks until everything enqueued so far is done.
  virtual void synchronize() = 0;
};

/// Ordinary memory of the heap; one serves every rank.
[[nodiscard]] Memory& host_memory();
/// Host memory for one rank, of the caller's allocator, which outlives it and its arenas.
[[nodiscard]] std::unique_ptr<Memory> make_host_memory(Allocator& allocator);

}  // namespace usp::kernels
