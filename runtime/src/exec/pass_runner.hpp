// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step_forms.hpp"

#include "usp/comm/data_plane.hpp"
#include "usp/device/stream_clock.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/regions.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/runtime/operation_kernels.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace usp {

/// What the steps of a pass need besides buffers.
struct StepInputs {
  int group = 1;
  const kernels::ScoreTerms* terms = nullptr;
  const double* sink = nullptr;  ///< in the kernel's memory
  double* d_sink = nullptr;
};

/// Executes one explicit schedule, again and again, in caller-provided buffers: the loop of
/// the runtime, the same forward and backward, on the host and on GPUs: there a run enqueues, and order on
/// the stream of the kernel's memory takes the place of completion. A step is prepared at its first run with
/// tensors of a form (PreparedStep), and the kernel outlives the runner; other runs allocate nothing.
class PassRunner {
 public:
  /// @param operations one for every operation of the schedule; throws InternalError where one lacks
  PassRunner(const schedule::RankSchedule& schedule, kernels::AttentionKernel& kernel,
             const ExecutorOptions& options,
             const std::vector<OperationKernel>& operations = operation_kernels());

  /// Where buffer `id` lies; every buffer has to be placed before run().
  void place(schedule::BufferId id, const kernels::View& view) {
    views_[static_cast<std::size_t>(id)] = view;
  }
  [[nodiscard]] const kernels::View& view(schedule::BufferId id) const {
    return views_[static_cast<std::size_t>(id)];
  }

  /// The transfers with other ranks, in the order of their starts, to connect. With `placed`, the buffers of
  /// the workspace are placed, and the ends that peers copy from or into name their regions.
  [[nodiscard]] std::vector<comm::ChannelEnd> ends(bool placed);

  /// For a run that a CUDA graph captures, once all buffers are placed: keeps its steps as long as the
  /// runner. False where one of them is yet to be prepared.
  [[nodiscard]] bool hold_steps(const StepInputs& inputs);

  /// Collective, over channels of ends(). Fills times and executed bytes.
  void run(const StepInputs& inputs, comm::Channels& channels, PassRecord& record);

 private:
  void tell_progress() { tell(progress_, tick_, static_cast<std::int64_t>(schedule_.ticks.size()), "ticks"); }
  void run_tick(std::size_t tick, TickTimes& times);
  void read_clock(std::vector<TickTimes>& times) const;
  [[nodiscard]] double now();
  void bind(int tick);
  void start(const schedule::Tick& tick);
  void wait(std::size_t transfer);
  void find_self_send(std::size_t receive);
  void keep(std::int32_t tick);
  void leave() const noexcept;
  [[nodiscard]] bool is_exposed(const schedule::Transfer& t) const;
  [[nodiscard]] i64 region_count(const schedule::Transfer& t) const {
    return t.stage >= 0 ? 1 : t.regions.count;
  }
  void describe(std::size_t transfer);
  void pack(const schedule::Transfer& t);
  void compute(schedule::ListRef steps);
  [[nodiscard]] schedule::ListRef call_at(std::int32_t step, std::int32_t end) const;
  [[nodiscard]] StepList list_of(schedule::ListRef steps);
  [[nodiscard]] std::span<const std::int32_t> gates_of(std::int32_t step) const;
  void announce_completions(schedule::ListRef steps, StepList& list);
  void await_gates(schedule::ListRef steps, StepList& list);
  void close_gates(schedule::ListRef steps, const StepList& list);
  void arrive(std::int32_t index);
  void copy_to_self(const schedule::Transfer& receive);
  void finish_sends(int tick);
  [[nodiscard]] kernels::AttendScope scope(const schedule::Step& step);
  /// A step with its buffers, which `views` receives: of keys the rows of its block.
  using StepViews = std::array<kernels::View, tensor_count>;
  [[nodiscard]] StepCall step_call(const schedule::Step& step, StepViews& views);

  const schedule::RankSchedule& schedule_;
  kernels::AttentionKernel& kernel_;
  kernels::Memory& memory_;
  const bool debug_nan_;
  WorkProgress* const progress_;
  std::int64_t tick_ = 0;                     ///< that runs
  comm::Channels* channels_ = nullptr;        ///< of the run
  PassRecord* record_ = nullptr;              ///< of the run
  std::optional<device::StreamClock> clock_;  ///< a GPU's stream whose times are wanted
  StepInputs inputs_;
  std::chrono::steady_clock::time_point start_;
  std::vector<kernels::View> views_;
  std::vector<decltype(OperationKernel::prepare)> step_kernels_;  ///< per step
  std::vector<StepForms> prepared_;                               ///< per call, by its first step
  std::vector<StepViews> step_views_;                             ///< of one call, by step
  std::vector<StepCall> step_calls_;                              ///< likewise
  std::vector<kernels::Gate> gates_;                              ///< likewise
  std::vector<kernels::Completion> completions_;                  ///< likewise
  std::vector<std::vector<schedule::BufferId>> begins_;           ///< per tick
  std::vector<std::vector<std::int32_t>> sends_due_;              ///< per tick: transfers
  std::vector<std::int32_t> early_send_;                          ///< per step: what follows it; -1: nothing
  std::vector<std::int32_t> self_send_;                           ///< per transfer: a self receive's send
  std::vector<std::size_t> region_begin_;                         ///< per transfer, into byte_regions_
  std::vector<comm::StridedBytes> byte_regions_;
  std::vector<std::int32_t> channel_;       ///< per transfer; -1: of the rank to itself
  std::vector<comm::ChannelStart> starts_;  ///< of one tick
  std::vector<std::string> tick_names_;
};

/// The bytes of a region of a view, in payload order (row, batch, head).
[[nodiscard]] comm::StridedBytes byte_region(const kernels::View& view, Range rows, Range heads);

}  // namespace usp
