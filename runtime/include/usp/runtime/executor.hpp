// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/comm/data_plane.hpp"
#include "usp/device/device.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/runtime/attention_call.hpp"
#include "usp/runtime/execution.hpp"
#include "usp/runtime/prepared.hpp"
#include "usp/runtime/saved_state.hpp"

#include <memory>

namespace usp {

struct ExecutorOptions {
  bool debug_nan = false;          ///< what is not there yet reads as NaN
  bool stream_times = false;       ///< on a GPU: TickTimes of its stream; a call then waits for its own end
  bool measure_workspace = false;  ///< fill the workspace with a pattern and find what was touched
  /// Compare among ranks, before forward, what must be the same on all: on the host in every call, replicated
  /// tokens included; on a GPU what is per head in the first call of a Prepared, and the seed in every one.
  bool compare_inputs = true;
  /// No backward follows, on any rank: the workspace is forward's alone, and `backward` is refused.
  bool forward_only = false;
  /// What a call took of the memory's allocator for its own time goes back to it when the call ends: scratch of
  /// kernels and what peers do not reach of the workspace. Each call then allocates, one that a CUDA graph
  /// captures too.
  bool release_scratch = false;
  /// Hears of the ticks of a pass, and on the host between tiles too.
  WorkProgress* progress = nullptr;
};

/// Runs attention on one rank: owns the workspace that all layers share. One per rank, for all plans and
/// batches of a model. Not thread-safe; calls from a forked child are refused (UsageError).
///
/// All tensors, per-head lists and saved states lie in the kernel's memory. Strides are 0 or more. Inputs may
/// overlap one another; the elements of a result have a place each, apart from all else that the call reads
/// or writes (tensors may interleave). UsageError names the tensors otherwise. On the host calls return when
/// this rank is done; on a GPU its work is enqueued by then, on the stream that the call names or on the
/// memory's own (CallStream), and the calls wait for other ranks' threads only. UsageError for a stream of
/// another GPU, or on the host.
///
/// Forward and backward may be captured into a CUDA graph (with the runtime's thread-local capture mode) when
/// the data plane allows it (DataPlane::capture_obstacle) and each has run once with this Prepared and
/// tensors of the same strides and alignment (up to 16 bytes). A replay reads and writes the tensors of the
/// captured call, and the workspace as it was: reserve() the largest call before a capture. Prepared outlives
/// the graph. All ranks capture and replay the same calls in the same order. UsageError names any other
/// obstacle.
class Executor {
 public:
  /// Local. Rank p of the data plane is the mesh's rank p. Data plane and kernel outlive this.
  Executor(comm::DataPlane& data_plane, kernels::AttentionKernel& kernel,
           const ExecutorOptions& options = {});
  /// The same over the messages of a communicator, which outlives this.
  Executor(comm::Communicator& communicator, kernels::AttentionKernel& kernel,
           const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Collective: compares the plan among ranks. The first forward of a plan calls it otherwise. Throws
  /// InvalidInput for a plan out of range, UsageError where kernel or communicator do not fit it,
  /// DisagreementError when ranks hold different plans.
  void admit(const AttentionPlan& plan);

  /// Collective. out: [batch][home q row][query head][Dv] in the input type. lse: the same with width 1 in
  /// the accumulator type; required iff the plan returns it. `saved` holds this forward afterwards; any other
  /// saved state is left alone, so backward passes may follow in any order. A call that is refused leaves
  /// `saved` as it was. Throws as AttentionInputs, Prepared and SavedState say; DisagreementError
  /// (compare_inputs).
  void forward(const std::shared_ptr<const Prepared>& prepared, const AttentionInputs& inputs,
               kernels::View out, kernels::View lse, SavedState& saved, device::StreamRef stream = {});
  /// Collective: the backward of the forward in `saved`, with the same inputs and its `out` as forward left
  /// it. d_out as out. Throws UsageError for a saved state that holds no forward, one of another Prepared, or
  /// one whose backward has run (SavedState::retain), and where per-head lists, seed or layer are others.
  void backward(const std::shared_ptr<const Prepared>& prepared, const AttentionInputs& inputs,
                kernels::ConstView out, kernels::ConstView d_out, const AttentionGradients& gradients,
                SavedState& saved, device::StreamRef stream = {});

  [[nodiscard]] comm::Communicator& communicator() const;
  [[nodiscard]] comm::DataPlane& data_plane() const;
  [[nodiscard]] kernels::AttentionKernel& kernel() const;
  [[nodiscard]] kernels::Memory& memory() const;
  /// Of the last call of a pass with `prepared`; UsageError where there was none.
  [[nodiscard]] const PassRecord& record(const Prepared& prepared, Pass pass) const;
  /// Bytes of the workspace of a call: the greatest of all calls so far, sums of gradients included.
  [[nodiscard]] i64 workspace_bytes() const;

  /// Makes room for calls with `prepared`, which then allocate nothing, and connects their transfers.
  /// Collective; the first forward of a plan and documents otherwise calls it.
  void reserve(const std::shared_ptr<const Prepared>& prepared);

 private:
  struct State;
  class CallScope;
  std::unique_ptr<State> state_;
};

/// Digest of everything in a plan: equal on ranks that will run the same schedule.
[[nodiscard]] std::uint64_t digest(const AttentionPlan& plan);
[[nodiscard]] std::uint64_t digest(const Documents& documents);

}  // namespace usp
