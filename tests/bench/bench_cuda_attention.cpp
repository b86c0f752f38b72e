// SPDX-License-Identifier: Apache-2.0
// Times a GPU backend through the public operator on one rank, for bench_cuda_attention_torch.py: reads lines
//   BACKEND SEQ HEADS KV_HEADS HEAD_DIM CAUSAL(0|1) HEAD_FIRST(0|1) ROUNDS
// and answers each with a line of ROUNDS pairs of seconds, forward and backward. bf16 in and out, the L2
// cache flushed before each call.
#include "device_noise.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/attention.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace usp::bench {
namespace {

struct Job {
  std::string backend;
  i64 rows = 0, heads = 0, kv_heads = 0, width = 0;
  int causal = 0, head_first = 0, rounds = 0;
};

class Tensor {
 public:
  Tensor(const Job& job, i64 heads, i64 width)
      : buffer_(0, job.rows * heads * width * bytes_of(DType::bf16)),
        view_(buffer_.data(), DType::bf16, 1, job.rows, {0, heads}, width) {
    if (job.head_first == 0) return;
    view_.row_stride = width;
    view_.head_stride = job.rows * width;
  }
  Tensor& randomize(device::StreamHandle stream, unsigned seed) {
    fill_with_noise(buffer_.data(), buffer_.bytes(), stream, seed);
    return *this;
  }
  [[nodiscard]] const kernels::View& view() const { return view_; }

 private:
  device::DeviceBuffer buffer_;
  kernels::View view_;
};

/// The tensors of a job, kept while the same job is asked for again: a pause for new ones would let the card
/// clock higher than its peer's.
struct Prepared {
  Prepared(const Job& j, kernels::AttentionKernel& kernel, device::StreamHandle stream)
      : job(j),
        q(job, job.heads, job.width),
        k(job, job.kv_heads, job.width),
        v(job, job.kv_heads, job.width),
        d_o(job, job.heads, job.width),
        o(job, job.heads, job.width),
        dq(job, job.heads, job.width),
        dk(job, job.kv_heads, job.width),
        dv(job, job.kv_heads, job.width),
        attention(plan(job), *alone, kernel) {
    unsigned seed = 1;
    for (Tensor* t : {&q, &k, &v, &d_o}) t->randomize(stream, seed++);
    attention.set_batch(Documents::single(job.rows, job.rows));
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  [[nodiscard]] static AttentionPlan plan(const Job& job) {
    AttentionPlan p;
    p.backend = parse_word<Backend>(job.backend, "BACKEND");
    p.shape = {1,
               job.rows,
               job.rows,
               static_cast<int>(job.heads),
               static_cast<int>(job.kv_heads),
               static_cast<int>(job.width),
               static_cast<int>(job.width),
               DType::bf16};
    if (job.causal != 0) p.band = {0, unbounded};
    return p;
  }

  Job job;
  Tensor q, k, v, d_o, o, dq, dk, dv;
  std::unique_ptr<comm::Communicator> alone = comm::make_serial_communicator();
  AttentionOperator attention;
};

class Bench {
 public:
  void run(const std::string& line) {
    Job job;
    std::istringstream(line) >> job.backend >> job.rows >> job.heads >> job.kv_heads >> job.width >>
        job.causal >> job.head_first >> job.rounds;
    const bool repeated = line == last_;
    last_ = line;
    kernels::AttentionKernel& kernel = kernel_of(parse_word<Backend>(job.backend, "BACKEND"));
    if (!repeated) {
      prepared_.reset();
      prepared_ = std::make_unique<Prepared>(job, kernel, stream_.get());
    }
    for (int round = repeated ? 0 : -1; round < job.rounds; ++round) {
      const auto [forward, backward] = once(*prepared_);
      if (round >= 0) std::printf("%.9g %.9g ", forward, backward);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  kernels::AttentionKernel& kernel_of(Backend backend) {
    std::unique_ptr<kernels::AttentionKernel>& kernel = kernels_[index_of(backend)];
    if (kernel == nullptr) kernel = kernels::factory_of(backend).make(*memory_, false);
    return *kernel;
  }
  /// Seconds of forward and backward.
  std::pair<double, double> once(Prepared& p) {
    const AttentionInputs in{p.q.view(), p.k.view(), p.v.view()};
    const double forward = timed([&] { p.attention.forward(in, p.o.view()); });
    const double backward = timed([&] {
      p.attention.backward(in, p.d_o.view(), {p.dq.view(), p.dk.view(), p.dv.view(), nullptr});
    });
    return {forward, backward};
  }
  template <class F>
  double timed(F&& f) {
    device::set_device_bytes(flush_.data(), 1, flush_.bytes(), stream_.get());
    begin_.record(stream_.get());
    f();
    end_.record(stream_.get());
    return device::seconds_between(begin_, end_);
  }

  device::CallStream stream_{0};
  std::unique_ptr<kernels::Memory> memory_ = kernels::make_cuda_memory(stream_);
  std::map<std::size_t, std::unique_ptr<kernels::AttentionKernel>> kernels_;  ///< by the backend's number
  device::DeviceBuffer flush_{0, i64{1} << 30};
  device::Event begin_{0, device::EventUse::timing}, end_{0, device::EventUse::timing};
  std::string last_;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace
}  // namespace usp::bench

int main() {
  usp::bench::Bench bench;
  for (std::string line; std::getline(std::cin, line);) bench.run(line);
  return 0;
}
