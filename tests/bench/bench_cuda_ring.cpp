// SPDX-License-Identifier: Apache-2.0
// One rank of a causal zigzag ring on one GPU, without its peers: everything that the rank's schedule
// computes, in ticks of one hop (ring) and of all hops at once (all_gather_kv), and the same blocks as one
// list (in one launch; hopper alone), beside one full call of cuDNN with as many local queries and all keys,
// and beside one of the backend itself. Nothing arrives: the KV blocks hold noise. The list also behind
// gates: all of them open at the start, and opened by copies that arrive meanwhile: from a second GPU,
// else from memory of the host, whose rate suits few KV heads (32 1: blocks come as 32 8 do at 400 GB/s).
//   bench_cuda_ring [BACKEND [LOCAL_TOKENS [RING [HEADS [KV_HEADS [ROUNDS]]]]]] [--json]
// Prints the median TFLOP/s over visible pairs and the ratio to the full call, in turns within one run; of
// lists behind gates the ratio to the list without, and what the copies reached.
#include "arriving_blocks.hpp"
#include "device_noise.hpp"
#include "median.hpp"
#include "options.hpp"
#include "single_rank.hpp"

#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace usp::bench {
namespace {

constexpr int head_dim = 128;

struct Job {
  Backend backend = Backend::cudnn;
  i64 local = 8192;
  int ring = 8, heads = 16, kv_heads = 16, rounds = 15;
  bool json = false;
};

/// Seconds of forward and of backward.
using Times = std::array<double, 2>;

class Gpu {
 public:
  [[nodiscard]] kernels::View noise(DType type, i64 rows, int heads) {
    const i64 bytes = rows * heads * head_dim * bytes_of(type);
    buffers_.emplace_back(0, bytes);
    fill_with_noise(buffers_.back().data(), bytes, stream.get(), static_cast<unsigned>(buffers_.size()));
    return {buffers_.back().data(), type, 1, rows, {0, heads}, head_dim};
  }
  [[nodiscard]] kernels::View lse(i64 rows, int heads) {
    buffers_.emplace_back(0, rows * heads * 4);
    return {buffers_.back().data(), DType::fp32, 1, rows, {0, heads}, 1};
  }
  template <class F, class G>
  [[nodiscard]] Times timed(F&& forward, G&& backward) {
    device::set_device_bytes(flush_.data(), 1, flush_.bytes(), stream.get());
    events_[0].record(stream.get());
    forward();
    events_[1].record(stream.get());
    device::set_device_bytes(flush_.data(), 1, flush_.bytes(), stream.get());
    events_[2].record(stream.get());
    backward();
    events_[3].record(stream.get());
    return {device::seconds_between(events_[0], events_[1]), device::seconds_between(events_[2], events_[3])};
  }

  device::CallStream stream{0};
  std::unique_ptr<kernels::Memory> memory = kernels::make_cuda_memory(stream);

 private:
  std::vector<device::DeviceBuffer> buffers_;
  device::DeviceBuffer flush_{0, i64{1} << 30};
  std::array<device::Event, 4> events_{
      device::Event(0, device::EventUse::timing), device::Event(0, device::EventUse::timing),
      device::Event(0, device::EventUse::timing), device::Event(0, device::EventUse::timing)};
};

/// Local queries against all keys in one call, results rounded once.
class FullCall {
 public:
  FullCall(const Job& job, Gpu& gpu, Backend backend)
      : job_(job), gpu_(gpu), kernel_(kernels::factory_of(backend).make(*gpu.memory, false)) {
    slice_.q_count = job.local;
    slice_.k_count = job.local * job.ring;
    terms_.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  }
  [[nodiscard]] double pairs() const {
    return static_cast<double>(slice_.q_count) * static_cast<double>(slice_.k_count);
  }
  [[nodiscard]] Times run() {
    const kernels::AttendScope scope{{0, job_.heads}, job_.heads / job_.kv_heads, &slice_, 1, &terms_, {}};
    const kernels::AttendArgs forward{q_, k_, v_, o_, lse_, scope, true};
    kernels::AttendGradArgs backward{q_, k_, v_, d_o_, lse_, {}, dq_, dk_, dv_, scope, true, o_};
    if (!kernel_->wants_o()) backward.delta = delta_, backward.o = {};
    if (attend_ == nullptr) attend_ = kernel_->prepare(forward), attend_grad_ = kernel_->prepare(backward);
    return gpu_.timed([&] { attend_->run(forward); },
                      [&] {
                        if (!kernel_->wants_o()) kernel_->delta({d_o_, o_, lse_, delta_, {0, job_.heads}});
                        attend_grad_->run(backward);
                      });
  }

 private:
  Job job_;
  Gpu& gpu_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::unique_ptr<kernels::PreparedAttend> attend_;
  std::unique_ptr<kernels::PreparedAttendGrad> attend_grad_;
  schedule::Slice slice_;
  kernels::ScoreTerms terms_;
  i64 keys_ = job_.local * job_.ring;
  kernels::View q_ = gpu_.noise(DType::bf16, job_.local, job_.heads),
                d_o_ = gpu_.noise(DType::bf16, job_.local, job_.heads),
                o_ = gpu_.noise(DType::bf16, job_.local, job_.heads),
                dq_ = gpu_.noise(DType::bf16, job_.local, job_.heads),
                k_ = gpu_.noise(DType::bf16, keys_, job_.kv_heads),
                v_ = gpu_.noise(DType::bf16, keys_, job_.kv_heads),
                dk_ = gpu_.noise(DType::bf16, keys_, job_.kv_heads),
                dv_ = gpu_.noise(DType::bf16, keys_, job_.kv_heads), lse_ = gpu_.lse(job_.local, job_.heads),
                delta_ = gpu_.lse(job_.local, job_.heads);
};

class RingRank {
 public:
  RingRank(const Job& job, Gpu& gpu, Method method, int rank)
      : gpu_(gpu),
        peers_(rank, job.ring, gpu.stream.get()),
        kernel_(kernels::factory_of(job.backend).make(*gpu.memory, false)),
        attention_(plan(job, method), peers_, *kernel_),
        q_(gpu.noise(DType::bf16, job.local, job.heads)),
        k_(gpu.noise(DType::bf16, job.local, job.kv_heads)),
        v_(gpu.noise(DType::bf16, job.local, job.kv_heads)),
        d_o_(gpu.noise(DType::bf16, job.local, job.heads)),
        o_(gpu.noise(DType::bf16, job.local, job.heads)),
        dq_(gpu.noise(DType::bf16, job.local, job.heads)),
        dk_(gpu.noise(DType::bf16, job.local, job.kv_heads)),
        dv_(gpu.noise(DType::bf16, job.local, job.kv_heads)) {
    attention_.set_batch(Documents::single(job.local * job.ring, job.local * job.ring));
  }
  /// Visible pairs per head.
  [[nodiscard]] double pairs() const {
    const schedule::RankSchedule& s = attention_.schedule(Pass::forward);
    double sum = 0;
    for (const schedule::Slice& slice : s.slices) sum += static_cast<double>(schedule::area(slice));
    return sum;
  }
  [[nodiscard]] Times run() {
    return gpu_.timed(
        [&] {
          attention_.forward({q_, k_, v_}, o_);
        },
        [&] {
          attention_.backward({q_, k_, v_}, d_o_, {dq_, dk_, dv_, nullptr});
        });
  }
  [[nodiscard]] const schedule::RankSchedule& schedule(Pass pass) const { return attention_.schedule(pass); }
  /// Blocks that "arrive" are filled from here on, or hold what they held.
  void arrive(bool noise) { peers_.arrive(noise); }

 private:
  [[nodiscard]] static AttentionPlan plan(const Job& job, Method method) {
    AttentionPlan p;
    p.backend = job.backend;
    p.method = method;
    p.mesh = {1, job.ring, 1};
    p.shape = {1,        job.local * job.ring, job.local * job.ring, job.heads, job.kv_heads, head_dim,
               head_dim, DType::bf16};
    p.band = {0, unbounded};
    return p;
  }

  Gpu& gpu_;
  SingleRank peers_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  AttentionOperator attention_;
  kernels::View q_, k_, v_, d_o_, o_, dq_, dk_, dv_;
};

/// How the blocks of a list come: behind no gates, open ones (and backward says when each is complete), or as
/// they are copied.
enum class Coming : std::uint8_t { ungated, open, completing, copied };

/// The blocks of a rank's hops as one list: o and dq are rounded once, dk and dv of every block are partials
/// in the type of sums, as they travel.
class OneList {
 public:
  OneList(const Job& job, Gpu& gpu, const RingRank& hops)
      : job_(job), gpu_(gpu), kernel_(kernels::factory_of(job.backend).make(*gpu.memory, false)) {
    terms_.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    const kernels::View q = noise(DType::bf16, job.heads), d_o = noise(DType::bf16, job.heads),
                        o = noise(DType::bf16, job.heads), dq = noise(DType::bf16, job.heads),
                        lse = gpu.lse(job.local, job.heads), delta = gpu.lse(job.local, job.heads);
    for (const schedule::Step& step : hops.schedule(Pass::forward).steps) {
      const schedule::Slice* const slices = hops.schedule(Pass::forward).slices.data() + step.slices.begin;
      const kernels::AttendScope scope{
          {0, job.heads}, job.heads / job.kv_heads, slices, step.slices.count, &terms_, {}};
      const kernels::View k = noise(DType::bf16, job.kv_heads), v = noise(DType::bf16, job.kv_heads);
      attend_.push_back({q, k, v, o, lse, scope, attend_.empty()});
      grads_.push_back({q, k, v, d_o, lse, delta, dq, noise(DType::fp32, job.kv_heads),
                        noise(DType::fp32, job.kv_heads), scope, grads_.empty()});
      grads_.back().overwrite_dkv = true;
    }
    delta_ = {d_o, o, lse, delta, {0, job.heads}};
    source_.emplace(attend_.front().k, gpu.stream.get());
    arrivals_.emplace(attend_.size());
    *fault() = 0;
    for (std::size_t i = 0; i < grads_.size(); ++i)
      completions_.push_back({reinterpret_cast<std::uint32_t*>(complete_.data()) + i, 1});
    ungated_ = {kernel_->prepare_blocks(list_of(attend_, nullptr)),
                kernel_->prepare_blocks(list_of(grads_, nullptr))};
    gated_ = {kernel_->prepare_blocks(list_of(attend_, arrivals_->open())),
              kernel_->prepare_blocks(list_of(grads_, arrivals_->open()))};
  }
  /// Throws EnvironmentError where copies do not get through beside the kernel.
  [[nodiscard]] Times run(Coming coming) {
    Steps& steps = coming == Coming::ungated ? ungated_ : gated_;
    const Times times = gpu_.timed([&] { steps.forward->run(list_of(attend_, gates(coming))); },
                                   [&] {
                                     const kernels::Gate* const gates = this->gates(coming);
                                     kernel_->delta(delta_);
                                     kernels::AttendGradBlocks list = list_of(grads_, gates);
                                     if (coming == Coming::completing) list.completions = completions_.data();
                                     steps.backward->run(list);
                                   });
    if (*fault() != 0) throw EnvironmentError("copies did not get through beside the kernel");
    return times;
  }
  /// Of the last backward.
  [[nodiscard]] double copied_gb_s() const { return arrivals_->gb_s(); }

 private:
  struct Steps {
    std::unique_ptr<kernels::PreparedAttendBlocks> forward;
    std::unique_ptr<kernels::PreparedAttendGradBlocks> backward;
  };
  [[nodiscard]] kernels::View noise(DType type, int heads) { return gpu_.noise(type, job_.local, heads); }
  [[nodiscard]] std::uint32_t* fault() const { return reinterpret_cast<std::uint32_t*>(fault_.data()); }
  template <class Args>
  [[nodiscard]] kernels::BlockList<Args> list_of(const std::vector<Args>& blocks,
                                                 const kernels::Gate* gates) const {
    constexpr std::int64_t limit_ns = 1'000'000'000;
    return {blocks.data(), static_cast<i64>(blocks.size()), gates, {nullptr, limit_ns, fault()}};
  }
  [[nodiscard]] const kernels::Gate* gates(Coming coming) {
    if (coming == Coming::ungated) return nullptr;
    if (coming != Coming::copied) return arrivals_->open();
    return arrivals_->begin(gpu_.stream.get(), [&](std::size_t block, device::StreamHandle stream) {
      return source_->copy_to(attend_[block].k, stream) + source_->copy_to(attend_[block].v, stream);
    });
  }

  Job job_;
  Gpu& gpu_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  kernels::ScoreTerms terms_;
  std::vector<kernels::AttendArgs> attend_;
  std::vector<kernels::AttendGradArgs> grads_;
  kernels::DeltaArgs delta_;
  std::optional<Source> source_;
  std::optional<Arrivals> arrivals_;
  device::PinnedBuffer fault_{sizeof(std::uint32_t)}, complete_{4096};  ///< of at most 1024 blocks
  std::vector<kernels::Completion> completions_;
  Steps ungated_, gated_;
};

struct Row {
  std::string name;
  double pairs = 0;
  std::vector<double> seconds[2];
  void add(const Times& t) {
    for (std::size_t pass : {0U, 1U}) seconds[pass].push_back(t[pass]);
  }
  [[nodiscard]] double rate(int pass, const Job& job) const {
    return (pass == 0 ? 4 : 10) * pairs * head_dim * job.heads / median(seconds[pass]) * 1e-12;
  }
};

/// What a row is compared with.
struct Peer {
  const Row& row;
  const char* key;  ///< of its rate in JSON
};

[[nodiscard]] const char* copies_from() {
  return Source::is_peer() ? "peer" : "host";
}

void print(const Job& job, int rank, const Row& row, const Peer& peer) {
  const double ms[] = {1e3 * median(row.seconds[0]), 1e3 * median(row.seconds[1])};
  if (!job.json) {
    std::printf(
        "rank %d  %-19s forward %8.3f ms %5.0f TFLOP/s %6.3f   backward %8.3f ms %5.0f TFLOP/s %6.3f\n", rank,
        row.name.c_str(), ms[0], row.rate(0, job), row.rate(0, job) / peer.row.rate(0, job), ms[1],
        row.rate(1, job), row.rate(1, job) / peer.row.rate(1, job));
    return;
  }
  for (const int pass : {0, 1})
    std::printf(
        R"({"rank": %d, "way": "%s", "pass": "%s", "ms": %.6g, "tflop_s": %.6g, "%s": %.6g, "copies": "%s"})"
        "\n",
        rank, row.name.c_str(), pass == 0 ? "forward" : "backward", ms[pass], row.rate(pass, job), peer.key,
        peer.row.rate(pass, job), copies_from());
}

void compare(const Job& job, int rank) {
  Gpu gpu;
  FullCall full(job, gpu, Backend::cudnn), own(job, gpu, job.backend);
  RingRank hops(job, gpu, Method::ring, rank), waves(job, gpu, Method::all_gather_kv, rank);
  std::optional<OneList> list;  // other backends make calls of it
  if (job.backend == Backend::hopper) list.emplace(job, gpu, hops);
  std::vector<Row> rows = {{"one full call", full.pairs(), {}},
                           {"one own full call", own.pairs(), {}},
                           {"one call per hop", hops.pairs(), {}},
                           {"in waves", waves.pairs(), {}}};
  const std::size_t launch = rows.size();
  if (list)
    for (const char* name : {"in one launch", "behind open gates", "completing blocks", "behind copies"})
      rows.push_back({name, hops.pairs(), {}});
  std::vector<double> copied;
  for (int round = -2; round < job.rounds; ++round) {
    for (RingRank* r : {&hops, &waves}) r->arrive(round < 0);
    std::vector<Times> times = {full.run(), own.run(), hops.run(), waves.run()};
    if (list) {
      // By turns forwards and backwards: what ran before counts.
      std::array comings{Coming::ungated, Coming::open, Coming::completing, Coming::copied};
      if (round % 2 != 0) std::reverse(comings.begin(), comings.end());
      times.resize(launch + comings.size());
      for (const Coming coming : comings)
        times[launch + static_cast<std::size_t>(coming)] = list->run(coming);
    }
    if (list && round >= 0) copied.push_back(list->copied_gb_s());
    for (std::size_t i = 0; round >= 0 && i < rows.size(); ++i) rows[i].add(times[i]);
  }
  for (std::size_t i = 0; i < rows.size(); ++i)
    print(job, rank, rows[i],
          i <= launch ? Peer{rows[0], "full_tflop_s"} : Peer{rows[launch], "launch_tflop_s"});
  if (list && !job.json)
    std::printf("rank %d  copies from %s of %.0f GB/s\n", rank, copies_from(), median(copied));
  std::fflush(stdout);
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) try {
  usp::bench::Options options(argc, argv);
  usp::bench::Job job;
  job.json = options.flag("--json");
  job.backend = usp::parse_word<usp::Backend>(options.word(0, "cudnn"), "BACKEND");
  job.local = options.number(1, job.local);
  std::size_t place = 2;
  for (int* const count : {&job.ring, &job.heads, &job.kv_heads, &job.rounds})
    *count = options.number(place++, *count);
  for (const int rank : {0, job.ring / 2 - 1, job.ring - 1}) usp::bench::compare(job, rank);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
