// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/comm/communicator.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/score_terms.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/runtime/host_tensor.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/transport.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// One attention call from whole tensors to whole tensors: what `usp run` and `usp bench` do.
namespace usp {

/// Everything a call reads, whole: [batch][token][head][width] in the plan's type. Per head: by query head.
struct CallTensors {
  HostTensor q, k, v, d_out;
  std::vector<double> sink, alibi_slopes;
  std::vector<std::uint8_t> admitted;  ///< of the block pattern
  std::uint64_t dropout_seed = 0;
};

/// Normally distributed tensors, sink logits, ALiBi's own slopes 2^(-8 (h + 1) / heads), and a pattern that
/// admits six blocks of ten; what the plan does not have is left empty. The same on every rank.
[[nodiscard]] CallTensors random_tensors(const AttentionPlan& plan, const Documents& documents,
                                         std::uint64_t seed);
/// The pattern of a plan, empty where it has none; points into `tensors`.
[[nodiscard]] kernels::BlockMask block_mask(const AttentionPlan& plan, const Documents& documents,
                                            const CallTensors& tensors);

struct RunOptions {
  bool training = true;
  int warm_up = 0;
  int repeat = 1;
  bool collect = true;  ///< bring results to rank 0
  std::string kernel;   ///< word of a KernelFactory; empty: the plan's backend
  /// Of GPU kernels, by axis of the mesh.
  Transport ulysses_transport = Transport::copy_engine, ring_transport = Transport::copy_engine;
  std::vector<int> devices;    ///< GPUs of the ranks, round and round; empty: all there are
  bool deterministic = false;  ///< gradients repeat bit for bit; on the host they always do
  /// Seconds on each GPU's own clock, of passes enqueued one after another; on the host: of the threads.
  bool stream_clock = false;
  comm::CommOptions comm;
  ExecutorOptions call;
  /// Hears of the passes of all repetitions, on rank 0's thread, also within a pass on the host.
  WorkProgress* progress = nullptr;
  /// Called once, where rank 0 runs, before anything else of the run: what it throws ends all ranks.
  std::function<void()> prepare;
};

/// Whether this machine has what a run takes, before anything is made for it: throws UsageError for an
/// unknown kernel or GPUs that it does not use, EnvironmentError for GPUs that are not there.
void check_machine(const AttentionPlan& plan, const RunOptions& options);

/// Rows of one rank.
struct Part {
  std::vector<i64> tokens;
  HostTensor rows;
};

struct RankResult {
  PassRecord record[2];            ///< forward, backward; of the last repetition
  std::vector<double> seconds[2];  ///< of every repetition after warm-up; empty: a dry run
  std::string device;              ///< ordinal and name of its GPU; empty: the host
  std::vector<std::string> notes;  ///< Communicator::notes()
  i64 planned_memory_bytes = 0;    ///< of its GPU: tensors, and AttentionOperator::planned_memory_bytes()
  i64 held_memory_bytes = 0;       ///< what was taken: Memory::held_bytes() in the end
  std::vector<kernels::BackendFallback> fallbacks;  ///< of all repetitions
};

struct RunResult {
  std::string kernel, communicator;
  bool training = true;
  std::vector<RankResult> ranks;
  /// One part per rank and tensor. Of tokens that every rank holds, out and lse are copies; gradients are
  /// partial sums.
  std::vector<Part> out, lse, dq, dk, dv;
  std::vector<double> d_sink;

  /// Notes of all ranks, each once.
  [[nodiscard]] std::vector<std::string> notes() const;
  /// Median over repetitions of the slowest rank.
  [[nodiscard]] double seconds(Pass pass) const;
  /// Bytes sent by all ranks.
  [[nodiscard]] i64 planned_bytes(Pass pass) const;
  [[nodiscard]] i64 executed_bytes(Pass pass) const;
  /// The first rank, tick and peer where executed bytes are not the planned ones, in words; empty: equal.
  [[nodiscard]] std::string bytes_difference() const;
  /// Calls that went to another backend than their plan says: of all ranks and repetitions.
  [[nodiscard]] std::vector<kernels::BackendFallback> fallbacks() const;
};

/// Runs forward, and backward when training, on as many ranks as the plan's mesh has. A token that every rank
/// holds has its dO on one of them and zero on the others. Empty in processes without rank 0.
[[nodiscard]] std::optional<RunResult> run_attention(const AttentionPlan& plan, const Documents& documents,
                                                     const CallTensors& tensors, const RunOptions& options);

/// Two runs that met the same state of the machine.
struct InterleavedRuns {
  RunResult ranks, alone;
};
/// As run_attention; after each repetition rank 0 runs one of `alone`, a plan for one rank, while the other
/// ranks wait for it: the watchdog time bounds that too.
[[nodiscard]] std::optional<InterleavedRuns> run_interleaved(const AttentionPlan& plan,
                                                             const AttentionPlan& alone,
                                                             const Documents& documents,
                                                             const CallTensors& tensors,
                                                             const RunOptions& options);

/// One plan twice: for its time, and with a clock on every tick.
struct RunsByStream {
  RunResult timed;    ///< seconds of every repetition, with RunOptions::stream_clock
  RunResult watched;  ///< of one repetition more: TickTimes with ExecutorOptions::stream_times
};
/// As run_attention.
[[nodiscard]] std::optional<RunsByStream> run_by_stream(const AttentionPlan& plan, const Documents& documents,
                                                        const CallTensors& tensors,
                                                        const RunOptions& options);

/// Plays the schedules of all ranks one after another, without payload and without kernels, in this process:
/// records are filled, nothing else. Every transfer is posted in its tick and completed once; throws
/// InternalError naming the first send that meets no receive of its size, and before anything is made
/// Infeasible for schedules that are too long (too_much_to_expand()). `progress` hears of the ranks played.
[[nodiscard]] RunResult dry_run_call(const AttentionPlan& plan, const Documents& documents, bool training,
                                     WorkProgress* progress = nullptr);

/// Global tensor of the parts, in token order: copies are the same row, or partial sums add up.
[[nodiscard]] HostTensor assemble(const std::vector<Part>& parts, i64 tokens, bool add);

}  // namespace usp
