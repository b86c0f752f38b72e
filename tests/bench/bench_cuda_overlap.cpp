// SPDX-License-Identifier: Apache-2.0
// Attention on one GPU alone and while copy engines move data between it and another, both ways, in turns:
//   bench_cuda_overlap [LOCAL_TOKENS [MIB [ROUNDS]]] [--json]
// cuDNN, LOCAL_TOKENS queries and keys, 16 heads of 128, bf16, no mask; copies of MIB each follow one another
// for as long as the attention runs (`uncovered` counts the rounds in which they ended first). Medians. Needs
// two GPUs.
#include "device_noise.hpp"
#include "median.hpp"
#include "options.hpp"

#include "usp/device/check.cuda.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <exception>
#include <vector>

namespace usp::bench {
namespace {

constexpr int heads = 16, width = 128;

struct Job {
  i64 local = 8192, bytes = i64{64} << 20;
  int rounds = 15;
  bool json = false;
};

/// Copies one way between GPU 0 and GPU 1, one after another, by the engine of the GPU that receives.
class Transfer {
 public:
  Transfer(int from, int to, i64 bytes) : from_(from, bytes), to_(to, bytes), stream_(to) {
    const device::Stream filling(from);
    fill_with_noise(from_.data(), bytes, filling.get(), static_cast<unsigned>(from));
    filling.synchronize();
  }
  void start(int copies) const {
    for (int i = 0; i < copies; ++i)
      device::check_cuda(cudaMemcpyAsync(to_.data(), from_.data(), static_cast<std::size_t>(from_.bytes()),
                                         cudaMemcpyDefault, stream_.get()),
                         "a peer copy");
    end_.record(stream_.get());
  }
  [[nodiscard]] bool running() const { return !end_.reached(); }
  void finish() const { stream_.synchronize(); }

 private:
  device::DeviceBuffer from_, to_;
  device::CallStream stream_;
  device::Event end_{stream_.device()};
};

/// Forward and gradient of one call on GPU 0.
class Attention {
 public:
  explicit Attention(i64 tokens) : tokens_(tokens) {
    slice_.q_count = slice_.k_count = tokens;
    terms_.scale = 1 / std::sqrt(static_cast<double>(width));
    for (kernels::View* v : {&q_, &k_, &v_, &d_o_, &o_, &dq_, &dk_, &dv_}) *v = tensor(width, DType::bf16);
    lse_ = tensor(1, DType::fp32);
  }
  /// Seconds of a pass, 0 forward; `meanwhile` is called once it is enqueued.
  template <class F>
  double seconds(int pass, F&& meanwhile) {
    const kernels::AttendScope scope{{0, heads}, 1, &slice_, 1, &terms_, {}};
    const kernels::AttendArgs forward{q_, k_, v_, o_, lse_, scope, true};
    const kernels::AttendGradArgs backward{q_, k_, v_, d_o_, lse_, {}, dq_, dk_, dv_, scope, true, o_};
    if (attend_ == nullptr) attend_ = kernel_->prepare(forward), attend_grad_ = kernel_->prepare(backward);
    begin_.record(stream_.get());
    if (pass == 0)
      attend_->run(forward);
    else
      attend_grad_->run(backward);
    end_.record(stream_.get());
    const double time = device::seconds_between(begin_, end_);
    meanwhile();
    return time;
  }

 private:
  [[nodiscard]] kernels::View tensor(int elements, DType type) {
    const i64 bytes = tokens_ * heads * elements * bytes_of(type);
    buffers_.emplace_back(0, bytes);
    fill_with_noise(buffers_.back().data(), bytes, stream_.get(), static_cast<unsigned>(buffers_.size()));
    return {buffers_.back().data(), type, 1, tokens_, {0, heads}, elements};
  }

  i64 tokens_;
  device::CallStream stream_{0};
  std::unique_ptr<kernels::Memory> memory_ = kernels::make_cuda_memory(stream_);
  std::unique_ptr<kernels::AttentionKernel> kernel_ = kernels::make_cudnn_kernel(*memory_);
  std::unique_ptr<kernels::PreparedAttend> attend_;
  std::unique_ptr<kernels::PreparedAttendGrad> attend_grad_;
  std::vector<device::DeviceBuffer> buffers_;
  schedule::Slice slice_;
  kernels::ScoreTerms terms_;
  kernels::View q_, k_, v_, d_o_, o_, dq_, dk_, dv_, lse_;
  device::Event begin_{0, device::EventUse::timing}, end_{0, device::EventUse::timing};
};

void compare(const Job& job, int pass, Attention& attention, const std::array<Transfer, 2>& ways) {
  // Copies run at 200 GB/s and more; attention at 300 TF/s and more.
  const double longest =
      4e-12 * static_cast<double>(job.local * job.local) * width * heads * (pass == 0 ? 1 : 2.5) / 300;
  const int copies = 2 + static_cast<int>(longest * 400e9 / static_cast<double>(job.bytes));
  std::vector<double> alone, beside;
  int uncovered = 0;
  for (int round = -2; round < job.rounds; ++round) {
    const double quiet = attention.seconds(pass, [] {});
    for (const Transfer& way : ways) way.start(copies);
    bool covered = false;
    const double busy = attention.seconds(pass, [&] { covered = ways[0].running() && ways[1].running(); });
    for (const Transfer& way : ways) way.finish();
    if (round < 0) continue;
    alone.push_back(quiet);
    beside.push_back(busy);
    uncovered += covered ? 0 : 1;
  }
  const char* const name = pass == 0 ? "forward" : "backward";
  const double a = 1e3 * median(alone), b = 1e3 * median(beside);
  if (job.json)
    std::printf(
        "{\"local\": %lld, \"mib\": %lld, \"pass\": \"%s\", \"alone_ms\": %.6g, \"beside_ms\": %.6g, "
        "\"rounds\": %d, \"uncovered\": %d}\n",
        static_cast<long long>(job.local), static_cast<long long>(job.bytes >> 20), name, a, b, job.rounds,
        uncovered);
  else
    std::printf(
        "%lld tokens, copies of %lld MiB both ways, %-8s alone %8.3f ms, beside copies %8.3f ms, %+.1f%%, "
        "uncovered %d of %d\n",
        static_cast<long long>(job.local), static_cast<long long>(job.bytes >> 20), name, a, b,
        100 * (b / a - 1), uncovered, job.rounds);
  std::fflush(stdout);
}

void run(const Job& job) {
  if (device::device_count() < 2)
    throw EnvironmentError("data between two GPUs takes two; this process sees " +
                           std::to_string(device::device_count()));
  device::enable_peer_access(0, 1);
  device::enable_peer_access(1, 0);
  const std::array<Transfer, 2> ways{Transfer(0, 1, job.bytes), Transfer(1, 0, job.bytes)};
  Attention attention(job.local);
  for (const int pass : {0, 1}) compare(job, pass, attention, ways);
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) {
  try {
    usp::bench::Options options(argc, argv);
    usp::bench::Job job;
    job.json = options.flag("--json");
    job.local = options.number<usp::i64>(0, job.local);
    job.bytes = options.number<usp::i64>(1, job.bytes >> 20) << 20;
    job.rounds = options.number<int>(2, job.rounds);
    usp::bench::run(job);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_overlap: %s\n", error.what());
    return 5;
  }
  return 0;
}
