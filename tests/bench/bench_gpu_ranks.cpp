// SPDX-License-Identifier: Apache-2.0
// Times planned attention over ranks on the GPUs there are, through the public operator; for
// bench_gpu_ranks_torch.py. Reads lines
//   BACKEND METHOD(ring|all_gather_kv|gated) TRANSPORT(copy_engine|nccl) RING ULYSSES CHUNKS SEQ HEADS
//   KV_HEADS HEAD_DIM CAUSAL(0|1) ROUNDS LENGTHS
// (gated: all_gather_kv in one call, which awaits each block as it lands; LENGTHS of packed documents, with
// commas between; 0: one document) and answers each with ROUNDS pairs of seconds (forward, backward), each
// the slowest rank's, then with the seconds of both passes that the rank that waits most spends in waiting
// for data, in one more round with a clock on every tick, with the visible pairs per head, with the host's
// seconds per tick: the median of the rounds, on the rank where it is greatest, and with the seconds that a
// rank took to be made and that its first round took.
#include "device_noise.hpp"
#include "gpu_rank.hpp"
#include "median.hpp"

#include "usp/comm/nccl.hpp"
#include "usp/comm/threads.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/schedule/generate.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace usp::bench {
namespace {

struct Job {
  std::string backend, method, transport;
  int ring = 1, ulysses = 1, chunks = 1;
  i64 tokens = 0;
  int heads = 0, kv_heads = 0, width = 0, causal = 0, rounds = 0;
  std::string lengths;

  [[nodiscard]] bool packed() const { return lengths != "0"; }
  [[nodiscard]] Documents documents() const {
    if (!packed()) return Documents::single(tokens, tokens);
    std::vector<i64> borders{0};
    std::istringstream list(lengths);
    for (std::string length; std::getline(list, length, ',');)
      borders.push_back(borders.back() + std::stoll(length));
    return Documents::packed(borders);
  }

  [[nodiscard]] AttentionPlan plan() const {
    AttentionPlan p;
    p.backend = parse_word<Backend>(backend, "BACKEND");
    p.method = method == "ring" ? Method::ring : Method::all_gather_kv;
    p.gated = method == "gated";
    p.mesh = {1, ring, ulysses};
    p.head_chunks = chunks;
    p.shape = {1, tokens, tokens, heads, kv_heads, width, width, DType::bf16};
    p.band = causal != 0 ? Band{0, unbounded} : Band{};
    p.layout = packed() ? LayoutKind::balanced : causal != 0 ? LayoutKind::zigzag : LayoutKind::contiguous;
    p.dkv_return = DkvReturn::circulate;
    p.split_own_block = schedule::splits_own_block(p);
    return p;
  }
};

[[nodiscard]] device::DeviceBuffer noise(int device, i64 bytes, device::StreamHandle stream, unsigned seed) {
  device::DeviceBuffer buffer(device, bytes);
  fill_with_noise(buffer.data(), bytes, stream, seed);
  return buffer;
}

class Rank {
 public:
  Rank(const Job& job, comm::Communicator& control, const ExecutorOptions& options = {})
      : control_(control),
        gpu_(control),
        kernel_(kernels::factory_of(job.plan().backend).make(*gpu_.memory, false)),
        nccl_(job.transport == "nccl"
                  ? comm::make_message_data_plane(comm::make_nccl_communicator(control, gpu_.stream), control)
                  : nullptr),
        attention_(job.plan(), nccl_ ? *nccl_ : *gpu_.data_plane, *kernel_, options) {
    attention_.set_batch(job.documents());
    const auto rows = static_cast<i64>(attention_.q_tokens().size());
    const i64 q_bytes = rows * job.heads * job.width * 2, kv_bytes = rows * job.kv_heads * job.width * 2;
    const int device = gpu_.stream.device();
    auto seed = static_cast<unsigned>(control.rank() * 16);
    for (const i64 bytes : {q_bytes, kv_bytes, kv_bytes, q_bytes})
      inputs_.push_back(noise(device, bytes, gpu_.stream.get(), ++seed));
    for (const i64 bytes : {q_bytes, q_bytes, kv_bytes, kv_bytes}) results_.emplace_back(device, bytes);
    const auto view = [&](const device::DeviceBuffer& b, int heads) {
      return kernels::View(b.data(), DType::bf16, 1, rows, {0, heads}, job.width);
    };
    in_.q = view(inputs_[0], job.heads);
    in_.k = view(inputs_[1], job.kv_heads);
    in_.v = view(inputs_[2], job.kv_heads);
    d_out_ = view(inputs_[3], job.heads);
    out_ = view(results_[0], job.heads);
    gradients_ = {view(results_[1], job.heads), view(results_[2], job.kv_heads),
                  view(results_[3], job.kv_heads), nullptr};
    for (int i = 0; i < 3; ++i) events_.emplace_back(device, device::EventUse::timing);
  }

  [[nodiscard]] std::array<double, 2> round() {
    gpu_.stream.synchronize();
    control_.barrier();
    events_[0].record(gpu_.stream.get());
    attention_.forward(in_, out_);
    events_[1].record(gpu_.stream.get());
    attention_.backward(in_, d_out_, gradients_);
    events_[2].record(gpu_.stream.get());
    return {device::seconds_between(events_[0], events_[1]), device::seconds_between(events_[1], events_[2])};
  }

  /// Of the last round: what its ticks waited beyond what they computed. Needs stream times.
  [[nodiscard]] double waited() const {
    double seconds = 0;
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const TickTimes& tick : attention_.record(pass).ticks) seconds += tick.end_s - tick.computed_s;
    return seconds;
  }
  /// Of the last round: what this thread took to enqueue a tick, waits for peers' threads included.
  [[nodiscard]] double host_per_tick() const {
    double seconds = 0;
    std::size_t ticks = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const std::vector<TickTimes>& times = attention_.record(pass).ticks;
      seconds += times.back().end_s;
      ticks += times.size();
    }
    return seconds / static_cast<double>(ticks);
  }
  /// Visible to this rank's rows, over all its query heads.
  [[nodiscard]] double pairs() const {
    const schedule::RankSchedule& s = attention_.schedule(Pass::forward);
    double sum = 0;
    for (const schedule::Step& step : s.steps)
      if (step.is(schedule::operations::attend))
        for (i64 i = 0; i < step.slices.count; ++i)
          sum +=
              static_cast<double>(schedule::area(s.slices[static_cast<std::size_t>(step.slices.begin + i)])) *
              static_cast<double>(step.query_heads.size());
    return sum;
  }

 private:
  comm::Communicator& control_;
  test::GpuRank gpu_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::unique_ptr<comm::DataPlane> nccl_;
  AttentionOperator attention_;
  std::vector<device::DeviceBuffer> inputs_, results_;
  AttentionInputs in_;
  kernels::ConstView d_out_;
  kernels::View out_;
  AttentionGradients gradients_;
  std::vector<device::Event> events_;
};

/// What each rank has, on rank 0; empty elsewhere.
template <class T>
[[nodiscard]] std::vector<T> gathered(comm::Communicator& control, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(control.size()));
  control.all_gather(&mine, all.data(), sizeof mine);
  if (control.rank() != 0) all.clear();
  return all;
}

/// Seconds of the slowest rank, on rank 0.
struct HostTimes {
  double per_tick = 0, made = 0, first_round = 0;
};

HostTimes time_rounds(const Job& job, comm::Communicator& control) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  HostTimes mine;
  control.barrier();
  const Clock::time_point begin = Clock::now();
  Rank rank(job, control);
  mine.made = since(begin);
  const Clock::time_point made = Clock::now();
  (void)rank.round();
  mine.first_round = since(made);
  std::vector<double> host;
  (void)rank.round();
  for (int i = 0; i < job.rounds; ++i) {
    const std::vector<std::array<double, 2>> all = gathered(control, rank.round());
    host.push_back(rank.host_per_tick());
    for (const std::size_t pass : {0U, 1U}) {
      double slowest = 0;
      for (const auto& times : all) slowest = std::max(slowest, times[pass]);
      if (!all.empty()) std::printf("%.9g ", slowest);
    }
  }
  mine.per_tick = median(host);
  HostTimes slowest;
  for (const HostTimes& times : gathered(control, mine)) {
    slowest.per_tick = std::max(slowest.per_tick, times.per_tick);
    slowest.made = std::max(slowest.made, times.made);
    slowest.first_round = std::max(slowest.first_round, times.first_round);
  }
  return slowest;
}

void watch_ticks(const Job& job, comm::Communicator& control) {
  Rank rank(job, control, {.stream_times = true});
  for (int i = 0; i < 3; ++i) (void)rank.round();
  const std::vector<double> waited = gathered(control, rank.waited()),
                            pairs = gathered(control, rank.pairs());
  if (waited.empty()) return;
  std::printf("%.9g %.17g", *std::max_element(waited.begin(), waited.end()),
              std::accumulate(pairs.begin(), pairs.end(), 0.0) / job.heads);
}

void run(const Job& job) {
  HostTimes host;  // written by rank 0
  const int ranks = job.ring * job.ulysses;
  comm::run_threads(ranks, {}, [&](comm::Communicator& control) {
    const HostTimes times = time_rounds(job, control);
    if (control.rank() == 0) host = times;
    control.barrier();  // peers may still read this rank's memory
  });
  comm::run_threads(ranks, {}, [&](comm::Communicator& control) {
    watch_ticks(job, control);
    control.barrier();
  });
  std::printf(" %.9g %.9g %.9g\n", host.per_tick, host.made, host.first_round);
  std::fflush(stdout);
}

}  // namespace
}  // namespace usp::bench

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    usp::bench::Job job;
    std::istringstream(line) >> job.backend >> job.method >> job.transport >> job.ring >> job.ulysses >>
        job.chunks >> job.tokens >> job.heads >> job.kv_heads >> job.width >> job.causal >> job.rounds >>
        job.lengths;
    try {
      usp::bench::run(job);
    } catch (const std::exception& error) {
      std::printf("error: %s\n", error.what());
      std::fflush(stdout);
    }
  }
  return 0;
}
