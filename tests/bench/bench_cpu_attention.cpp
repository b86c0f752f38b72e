// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel against this machine's sgemm, one thread, causal, fp32, rounds of both
// interleaved:
//   bench_cpu_attention [--seq N]... [--heads H] [--kv-heads H] [--head-dim D] [--rounds R] [--seconds]
// Flops per visible pair and head: 4 D forward, 10 D backward. --seconds prints "seq forward
// forward+backward" of every round instead, for other programs to compare with.
#include "sgemm.hpp"

#include "usp/kernels/backends.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace usp::bench {
namespace {

struct Options {
  std::vector<i64> lengths;
  i64 heads = 2, kv_heads = 2, head_dim = 128, rounds = 7;
  bool seconds = false;
};

using Clock = std::chrono::steady_clock;

template <class F>
[[nodiscard]] double timed(const F& f) {
  const auto start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Times {
  std::vector<double> all;
  [[nodiscard]] double best() const { return *std::min_element(all.begin(), all.end()); }
  [[nodiscard]] double median() const {
    std::vector<double> sorted = all;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

[[nodiscard]] std::vector<float> noise(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

class Attention {
 public:
  Attention(const Options& o, i64 length)
      : options_(o), length_(length), kernel_(kernels::make_cpu_kernel()) {
    slice_.q_count = slice_.k_count = length;
    slice_.diff_min = 0;
    terms_.scale = 1 / std::sqrt(static_cast<double>(o.head_dim));
    const i64 queries = length * o.heads * o.head_dim, keys = length * o.kv_heads * o.head_dim;
    for (std::size_t i = 0; i < 4; ++i)
      inputs_[i] = noise(i == 0 || i == 3 ? queries : keys, static_cast<unsigned>(i));
    for (std::size_t i = 0; i < 4; ++i) states_[i].resize(static_cast<std::size_t>(i < 2 ? queries : keys));
    lse_.resize(static_cast<std::size_t>(length * o.heads));
    delta_ = lse_;
  }
  [[nodiscard]] const char* name() const { return kernel_->name(); }
  [[nodiscard]] double pairs() const {
    const auto n = static_cast<double>(length_);
    return n * (n + 1) / 2 * static_cast<double>(options_.heads);
  }

  void forward() {
    std::fill(states_[0].begin(), states_[0].end(), 0.0F);
    std::fill(lse_.begin(), lse_.end(), -std::numeric_limits<float>::infinity());
    const kernels::AttendArgs args{in(0, true),    in(1, false),   in(2, false),
                                   state(0, true), row_view(lse_), scope()};
    if (attend_ == nullptr) attend_ = kernel_->prepare(args);
    attend_->run(args);
  }
  void backward() {
    for (std::size_t i = 1; i < 4; ++i) std::fill(states_[i].begin(), states_[i].end(), 0.0F);
    kernel_->delta({in(3, true), state(0, true), row_view(lse_), row_view(delta_), {0, options_.heads}});
    const kernels::AttendGradArgs args{in(0, true),     in(1, false),     in(2, false),   in(3, true),
                                       row_view(lse_),  row_view(delta_), state(1, true), state(2, false),
                                       state(3, false), scope()};
    if (attend_grad_ == nullptr) attend_grad_ = kernel_->prepare(args);
    attend_grad_->run(args);
  }

 private:
  [[nodiscard]] kernels::ConstView in(std::size_t i, bool query) const {
    return {reinterpret_cast<const std::byte*>(inputs_[i].data()), DType::fp32,      1, length_,
            {0, query ? options_.heads : options_.kv_heads},       options_.head_dim};
  }
  [[nodiscard]] kernels::View state(std::size_t i, bool query) {
    return {reinterpret_cast<std::byte*>(states_[i].data()), DType::fp32,      1, length_,
            {0, query ? options_.heads : options_.kv_heads}, options_.head_dim};
  }
  [[nodiscard]] kernels::View row_view(std::vector<float>& x) const {
    return {reinterpret_cast<std::byte*>(x.data()), DType::fp32, 1, length_, {0, options_.heads}, 1};
  }
  [[nodiscard]] kernels::AttendScope scope() const {
    return {
        {0, options_.heads}, static_cast<int>(options_.heads / options_.kv_heads), &slice_, 1, &terms_, {}};
  }

  Options options_;
  i64 length_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::unique_ptr<kernels::PreparedAttend> attend_;
  std::unique_ptr<kernels::PreparedAttendGrad> attend_grad_;
  schedule::Slice slice_;
  kernels::ScoreTerms terms_;
  std::vector<float> inputs_[4];  ///< q, k, v, d_o
  std::vector<float> states_[4];  ///< o, dq, dk, dv
  std::vector<float> lse_, delta_;
};

void print_seconds(const Options& options, i64 length) {
  Attention attention(options, length);
  attention.forward();
  attention.backward();
  for (i64 round = 0; round < options.rounds; ++round) {
    const double forward = timed([&] { attention.forward(); });
    std::printf("%lld %.6f %.6f\n", static_cast<long long>(length), forward,
                forward + timed([&] { attention.backward(); }));
  }
}

void print_row(const char* what, const Times& times, double flops, double best_gemm, double median_gemm) {
  const double best = flops / times.best() / 1e9, median = flops / times.median() / 1e9;
  std::printf("  %-24s %9.1f %9.1f %9.3f %9.3f\n", what, best, median, best / best_gemm,
              median / median_gemm);
}

void print_table(const Options& options, i64 length) {
  constexpr int n = 1024;
  constexpr double gemm_flops = 2.0 * n * n * n;
  const std::vector<float> a = noise(n * n, 7), b = noise(n * n, 8);
  std::vector<float> c(a.size());
  Attention attention(options, length);
  const std::vector<Sgemm> gemms = sgemms();
  std::vector<Times> gemm_times(gemms.size());
  Times forward, backward;
  for (i64 round = -1; round < options.rounds; ++round) {
    const auto note = [&](Times& to, double seconds) {
      if (round >= 0) to.all.push_back(seconds);
    };
    // Samples of like length on both sides: the best of many short ones would flatter the one.
    const double seconds = timed([&] { attention.forward(); });
    note(forward, seconds);
    for (std::size_t g = 0; g < gemms.size(); ++g) {
      const int times = std::max(1, static_cast<int>(seconds * 80e9 / gemm_flops));
      note(gemm_times[g], timed([&] {
                            for (int i = 0; i < times; ++i)
                              gemms[g].multiply(n, a.data(), b.data(), c.data());
                          }) / times);
    }
    note(backward, timed([&] { attention.backward(); }));
  }
  double best = 0, median = 0;
  for (const Times& t : gemm_times) {
    best = std::max(best, gemm_flops / t.best() / 1e9);
    median = std::max(median, gemm_flops / t.median() / 1e9);
  }
  const double dim = static_cast<double>(options.head_dim);
  std::printf("%lld tokens, %lld/%lld heads of %lld, causal, fp32, 1 thread, kernel %s\n",
              static_cast<long long>(length), static_cast<long long>(options.heads),
              static_cast<long long>(options.kv_heads), static_cast<long long>(options.head_dim),
              attention.name());
  std::printf("  %-24s %9s %9s %9s %9s\n", "GFLOP/s, ratio to sgemm", "best", "median", "best/", "median/");
  for (std::size_t g = 0; g < gemms.size(); ++g)
    print_row(("sgemm 1024 " + gemms[g].name).c_str(), gemm_times[g], gemm_flops, best, median);
  print_row("forward", forward, attention.pairs() * 4 * dim, best, median);
  print_row("delta + backward", backward, attention.pairs() * 10 * dim, best, median);
}

[[nodiscard]] Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0) {
      o.seconds = true;
      continue;
    }
    const std::string flag = argv[i];
    const i64 value = i + 1 < argc ? std::atoll(argv[++i]) : 0;
    i64* const to = flag == "--heads"      ? &o.heads
                    : flag == "--kv-heads" ? &o.kv_heads
                    : flag == "--head-dim" ? &o.head_dim
                    : flag == "--rounds"   ? &o.rounds
                                           : nullptr;
    if (value <= 0 || (to == nullptr && flag != "--seq")) {
      std::fprintf(stderr, "bench_cpu_attention: cannot read '%s'; see the head of its source\n",
                   flag.c_str());
      std::exit(2);
    }
    if (to == nullptr)
      o.lengths.push_back(value);
    else
      *to = value;
  }
  if (o.lengths.empty()) o.lengths = {2048, 8192};
  return o;
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) {
  const auto options = usp::bench::parse(argc, argv);
  for (const usp::i64 length : options.lengths)
    options.seconds ? usp::bench::print_seconds(options, length) : usp::bench::print_table(options, length);
}
