// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step_forms.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/device/stream_clock.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/regions.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/runtime/operation_kernels.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <array>
#include <chrono>
#include <optional>
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
  PassRunner(const schedule::RankSchedule& schedule, comm::Communicator& communicator,
             kernels::AttentionKernel& kernel, const ExecutorOptions& options,
             const std::vector<OperationKernel>& operations = operation_kernels());

  /// Where buffer `id` lies; every buffer has to be placed before run().
  void place(schedule::BufferId id, const kernels::View& view) {
    views_[static_cast<std::size_t>(id)] = view;
  }
  [[nodiscard]] const kernels::View& view(schedule::BufferId id) const {
    return views_[static_cast<std::size_t>(id)];
  }

  /// For a run that a CUDA graph captures, once all buffers are placed: keeps its steps as long as the
  /// runner. False where one of them is yet to be prepared.
  [[nodiscard]] bool hold_steps(const StepInputs& inputs);

  /// Collective. `call` is the same on every rank and differs between passes in flight.
  void run(const StepInputs& inputs, i64 call, std::vector<TickTimes>& times);

 private:
  void tell_progress() { tell(progress_, tick_, static_cast<std::int64_t>(schedule_.ticks.size()), "ticks"); }
  void run_tick(std::size_t tick, i64 first_tag, TickTimes& times);
  void read_clock(std::vector<TickTimes>& times) const;
  [[nodiscard]] double now();
  void bind(int tick);
  void post(const schedule::Tick& tick);
  void describe(const schedule::Transfer& t, std::size_t index);
  void compute(std::size_t step);
  void arrive(std::int32_t index);
  void copy_to_self(const schedule::Transfer& receive);
  void finish_sends(int tick);
  [[nodiscard]] kernels::AttendScope scope(const schedule::Step& step);
  /// A step with its buffers, which `views` receives.
  using StepViews = std::array<kernels::View, tensor_count>;
  [[nodiscard]] StepCall step_call(const schedule::Step& step, StepViews& views);

  const schedule::RankSchedule& schedule_;
  comm::Communicator& communicator_;
  kernels::AttentionKernel& kernel_;
  kernels::Memory& memory_;
  const bool debug_nan_;
  WorkProgress* const progress_;
  std::int64_t tick_ = 0;                     ///< that runs
  std::optional<device::StreamClock> clock_;  ///< a GPU's stream whose times are wanted
  StepInputs inputs_;
  std::chrono::steady_clock::time_point start_;
  std::vector<kernels::View> views_;
  std::vector<decltype(OperationKernel::prepare)> step_kernels_;  ///< per step
  std::vector<StepForms> prepared_;                               ///< per step
  std::vector<std::vector<schedule::BufferId>> begins_;           ///< per tick
  std::vector<std::vector<std::int32_t>> sends_due_;              ///< per tick: transfers
  std::vector<std::int32_t> self_send_;                           ///< per transfer: a self receive's send
  std::vector<std::size_t> region_begin_;                         ///< per transfer, into byte_regions_
  std::vector<comm::StridedBytes> byte_regions_;
  std::vector<comm::Message> messages_;  ///< of one tick
  std::vector<std::int32_t> posted_;     ///< transfers of messages_
  std::vector<comm::Ticket> new_tickets_;
  std::vector<comm::Ticket> tickets_;  ///< per transfer
};

/// The bytes of a region of a view, in payload order (row, batch, head).
[[nodiscard]] comm::StridedBytes byte_region(const kernels::View& view, Range rows, Range heads);

}  // namespace usp
