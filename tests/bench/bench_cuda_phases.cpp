// SPDX-License-Identifier: Apache-2.0
// The forward pass of one rank of a causal zigzag ring on one GPU, without its peers: its blocks as the calls
// of a gated plan in 1 to 4 phases (AttentionPlan::gate_phases; hopper), o and lse carried in fp32. First
// with every block there, then behind gates that copies open while the calls run: from a second GPU, else
// from memory of the host, whose rate suits few KV heads (32 1, 16 2: blocks come as 32 8 and 16 16 do at 400
// GB/s).
//   bench_cuda_phases [LOCAL_TOKENS [RING [HEADS [KV_HEADS [ROUNDS [RANK]]]]]]
// Prints medians in turns within one run, beside one call without gates; what the copies hold up, beside what
// prices say of the times of a block that are measured here (PassAccumulator::tick). Blocks hold NaN until
// they arrive, and both ways have to give the same bits.
#include "arriving_blocks.hpp"
#include "device_noise.hpp"
#include "median.hpp"
#include "options.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/expand.hpp"
#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/generate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace usp::bench {
namespace {

constexpr int head_dim = 128, tile_rows = 128;
constexpr std::int64_t limit_ns = 1'000'000'000;

struct Job {
  i64 local = 8192;
  int ring = 8, heads = 32, kv_heads = 8, rounds = 20, rank = 3;

  [[nodiscard]] int most_phases() const { return std::min(ring, schedule::max_gate_phases); }
};

/// The steps of the rank, a block each, in the order of the ring.
schedule::RankSchedule schedule_of(const Job& job) {
  AttentionPlan plan;
  plan.backend = Backend::hopper;
  plan.method = Method::all_gather_kv;
  plan.gated = true;
  plan.mesh = {1, job.ring, 1};
  const i64 tokens = job.local * job.ring;
  plan.shape = {1, tokens, tokens, job.heads, job.kv_heads, head_dim, head_dim, DType::bf16};
  plan.band = {0, unbounded};
  const schedule::TokenMap tokens_of(plan, Documents::single(tokens, tokens));
  schedule::CompactSchedule compact;
  schedule::generate(plan, false, compact);
  return schedule::expand(tokens_of, compact, job.rank, Pass::forward);
}

/// How the blocks come.
enum class Coming : std::uint8_t { ungated, open, copied };

class Rank {
 public:
  explicit Rank(const Job& job) : job_(job), schedule_(schedule_of(job)), arrivals_(blocks()) {
    terms_.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    const kernels::View q = noise(DType::bf16, job.heads);
    o_ = noise(DType::fp32, job.heads), lse_ = view(DType::fp32, job.heads, 1);
    for (const schedule::Step& step : schedule_.steps) {
      const kernels::AttendScope scope{{0, job.heads},
                                       job.heads / job.kv_heads,
                                       schedule_.slices.data() + step.slices.begin,
                                       step.slices.count,
                                       &terms_,
                                       {}};
      attend_.push_back({q, noise(DType::bf16, job.kv_heads), noise(DType::bf16, job.kv_heads), o_, lse_,
                         scope, attend_.empty()});
      sources_.emplace_back(attend_.back().k, stream_.get());
      sources_.emplace_back(attend_.back().v, stream_.get());
    }
    *fault() = 0;
    const kernels::Gate* const gates = arrivals_.open();
    for (int phases = 1; phases <= job.most_phases(); ++phases) calls_.push_back(prepare(phases, gates));
    ungated_ = prepare(1, nullptr);
  }

  /// Seconds of the pass. Throws EnvironmentError where copies do not get through beside the kernel.
  double run(int phases, Coming coming) {
    if (coming == Coming::copied)
      for (std::size_t block = 1; block < blocks(); ++block)
        for (const kernels::ConstView& x : {attend_[block].k, attend_[block].v})
          device::set_device_bytes(const_cast<std::byte*>(x.data), 0xff, bytes_of(x), stream_.get());
    // Longer than all that follows takes to enqueue, so that copies and calls begin together.
    for (int i = 0; i < 4; ++i) device::set_device_bytes(flush_.data(), i, flush_.bytes(), stream_.get());
    const kernels::Gate* const gates = this->gates(coming);
    begin_.record(stream_.get());
    Calls& calls = coming == Coming::ungated ? ungated_ : calls_[static_cast<std::size_t>(phases - 1)];
    for (int phase = 0; phase < phases; ++phase)
      calls[static_cast<std::size_t>(phase)]->run(list_of(phases, phase, gates));
    end_.record(stream_.get());
    const double seconds = device::seconds_between(begin_, end_);
    if (*fault() != 0) throw EnvironmentError("copies did not get through beside the kernel");
    return seconds;
  }
  /// Of the last copies.
  [[nodiscard]] double arrival_s() const {
    return static_cast<double>(bytes_of(attend_[1].k) + bytes_of(attend_[1].v)) / (arrivals_.gb_s() * 1e9);
  }
  /// What the last pass has computed.
  [[nodiscard]] std::vector<float> results() const {
    std::vector<float> all(static_cast<std::size_t>(o_.elements() + lse_.elements()));
    device::copy_to_host(all.data(), o_.data, bytes_of(o_), stream_.get());
    device::copy_to_host(all.data() + o_.elements(), lse_.data, bytes_of(lse_), stream_.get());
    stream_.synchronize();
    return all;
  }
  /// Visible pairs per head.
  [[nodiscard]] double pairs() const {
    double sum = 0;
    for (const schedule::Slice& slice : schedule_.slices) sum += static_cast<double>(schedule::area(slice));
    return sum;
  }

 private:
  using Calls = std::vector<std::unique_ptr<kernels::PreparedAttendBlocks>>;

  [[nodiscard]] std::size_t blocks() const { return schedule_.steps.size(); }
  [[nodiscard]] static i64 bytes_of(const kernels::ConstView& x) {
    return x.elements() * usp::bytes_of(x.type);
  }
  [[nodiscard]] kernels::View view(DType type, int heads, int width) {
    buffers_.emplace_back(0, job_.local * heads * width * usp::bytes_of(type));
    return {buffers_.back().data(), type, 1, job_.local, {0, heads}, width};
  }
  [[nodiscard]] kernels::View noise(DType type, int heads) {
    const kernels::View made = view(type, heads, head_dim);
    fill_with_noise(made.data, bytes_of(made), stream_.get(), static_cast<unsigned>(buffers_.size()));
    return made;
  }
  [[nodiscard]] std::uint32_t* fault() const { return reinterpret_cast<std::uint32_t*>(fault_.data()); }
  [[nodiscard]] kernels::AttendBlocks list_of(int phases, int phase, const kernels::Gate* gates) const {
    const int begin = phase == 0 ? 0 : schedule::blocks_through_phase(job_.ring, phases, phase - 1),
              end = schedule::blocks_through_phase(job_.ring, phases, phase);
    return {attend_.data() + begin,
            end - begin,
            gates == nullptr ? nullptr : gates + begin,
            {nullptr, limit_ns, fault()}};
  }
  [[nodiscard]] Calls prepare(int phases, const kernels::Gate* gates) {
    Calls calls;
    for (int phase = 0; phase < phases; ++phase)
      calls.push_back(kernel_->prepare_blocks(list_of(phases, phase, gates)));
    return calls;
  }
  [[nodiscard]] const kernels::Gate* gates(Coming coming) {
    if (coming == Coming::ungated) return nullptr;
    if (coming == Coming::open) return arrivals_.open();
    return arrivals_.begin(stream_.get(), [&](std::size_t block, device::StreamHandle stream) {
      return sources_[2 * block].copy_to(attend_[block].k, stream) +
             sources_[2 * block + 1].copy_to(attend_[block].v, stream);
    });
  }

  Job job_;
  device::CallStream stream_{0};
  std::unique_ptr<kernels::Memory> memory_ = kernels::make_cuda_memory(stream_);
  std::unique_ptr<kernels::AttentionKernel> kernel_ =
      kernels::factory_of(Backend::hopper).make(*memory_, false);
  schedule::RankSchedule schedule_;
  kernels::ScoreTerms terms_;
  std::vector<device::DeviceBuffer> buffers_;
  device::DeviceBuffer flush_{0, i64{1} << 30};
  device::PinnedBuffer fault_{sizeof(std::uint32_t)};
  kernels::View o_, lse_;
  std::vector<kernels::AttendArgs> attend_;
  std::vector<Source> sources_;  ///< k and v by block
  Arrivals arrivals_;
  std::vector<Calls> calls_;  ///< behind gates, by phases
  Calls ungated_;
  device::Event begin_{0, device::EventUse::timing}, end_{0, device::EventUse::timing};
};

/// What prices add for blocks that arrive every `arrival_s` and take `block_s` each, in waves of tiles.
double stall(const Job& job, int phases, double arrival_s, double block_s, double waves) {
  double most = 0;
  for (int phase = 0, begin = 0; phase < phases; ++phase) {
    const int end = schedule::blocks_through_phase(job.ring, phases, phase);
    for (int block = begin; block < end; ++block)
      most = std::max(most, block * arrival_s - begin * block_s - (block - begin) * block_s / waves);
    begin = end;
  }
  return most;
}

struct Row {
  std::vector<double> open, copied;
};

/// Root mean square of the difference over that of `b`.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y), size += y * y;
  }
  return std::sqrt(difference / size);
}

void compare(const Job& job) {
  Rank rank(job);
  std::vector<Row> rows(static_cast<std::size_t>(job.most_phases()));
  std::vector<double> ungated, arrivals;
  constexpr int warm_up = 2;
  for (int round = -warm_up; round < job.rounds; ++round) {
    const double one_call = rank.run(1, Coming::ungated);
    if (round >= 0) ungated.push_back(one_call);
    for (const Coming coming : {Coming::open, Coming::copied})  // calls that stall leave the card a rest
      for (int phases = 1; phases <= job.most_phases(); ++phases) {
        Row& row = rows[static_cast<std::size_t>(phases - 1)];
        const double seconds = rank.run(phases, coming);
        if (round < 0) continue;
        (coming == Coming::open ? row.open : row.copied).push_back(seconds);
        if (coming == Coming::copied) arrivals.push_back(rank.arrival_s());
      }
  }
  (void)rank.run(1, Coming::ungated);
  const std::vector<float> expected = rank.results();
  const int multiprocessors = device::device_info(0).multiprocessors;
  const double block_s = median(ungated) / job.ring, arrival_s = median(arrivals),
               waves =
                   std::max(1.0, static_cast<double>(job.heads) *
                                     std::ceil(static_cast<double>(job.local) / tile_rows) / multiprocessors);
  std::printf(
      "ring %d, rank %d, %lld tokens, %d/%d heads: one call without gates %.3f ms, %.0f TFLOP/s\n"
      "a block takes %.3f ms to arrive (from %s) and %.3f ms in %.1f waves to attend\n",
      job.ring, job.rank, static_cast<long long>(job.local), job.heads, job.kv_heads, 1e3 * median(ungated),
      4 * rank.pairs() * head_dim * job.heads / median(ungated) * 1e-12, 1e3 * arrival_s,
      Source::is_peer() ? "peer" : "host", 1e3 * block_s, waves);
  for (int phases = 1; phases <= job.most_phases(); ++phases) {
    const Row& row = rows[static_cast<std::size_t>(phases - 1)];
    (void)rank.run(phases, Coming::open);
    const std::vector<float> open = rank.results();
    (void)rank.run(phases, Coming::copied);
    const std::vector<float> copied = rank.results();
    const bool same = std::memcmp(open.data(), copied.data(), open.size() * sizeof(float)) == 0;
    const double there = median(row.open), behind = median(row.copied);
    std::printf(
        "%d phases  there %8.3f ms %6.3f   behind copies %8.3f ms %6.3f   stall %7.3f ms, priced %7.3f   "
        "%s bits, %.1e from one call\n",
        phases, 1e3 * there, median(ungated) / there, 1e3 * behind, median(ungated) / behind,
        1e3 * (behind - there), 1e3 * stall(job, phases, arrival_s, block_s, waves), same ? "same" : "OTHER",
        relative_difference(open, expected));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) try {
  usp::bench::Options options(argc, argv);
  usp::bench::Job job;
  job.local = options.number(0, job.local);
  std::size_t place = 1;
  for (int* const count : {&job.ring, &job.heads, &job.kv_heads, &job.rounds, &job.rank})
    *count = options.number(place++, *count);
  usp::bench::compare(job);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
