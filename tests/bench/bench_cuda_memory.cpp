// SPDX-License-Identifier: Apache-2.0
// The kernels that memory bandwidth bounds beside a device-to-device copy of as many bytes, in turns:
//   bench_cuda_memory [ROWS HEADS HEAD_DIM [ROUNDS]] [--json]
// A byte read and a byte written count one each. Several launches over sets of tensors that are greater than
// the L2 cache are timed as one, so that nothing is found there and each pays for the lines that the one
// before it wrote: alone, a copy would leave much of what it wrote to whatever runs next.
#include "layout/strided_copy.hpp"
#include "median.hpp"
#include "options.hpp"
#include "state/state.hpp"

#include "usp/device/check.cuda.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace usp::bench {
namespace {

constexpr int sets = 4;

struct Shape {
  i64 rows = 16384, heads = 16, width = 128;
  [[nodiscard]] i64 elements() const { return rows * heads * width; }
};

/// Random bf16, finite and of both signs, repeated over a buffer; as fp32 they are as harmless.
void fill_random(const device::DeviceBuffer& buffer, device::StreamHandle stream) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::uint32_t> pattern(1U << 20);
  for (std::uint32_t& word : pattern) {
    const float a = normal(random), b = normal(random);
    std::uint32_t x, y;
    std::memcpy(&x, &a, 4);
    std::memcpy(&y, &b, 4);
    word = (x & 0xffff0000U) | (y >> 16);
  }
  const auto bytes = static_cast<i64>(pattern.size() * 4);
  for (i64 at = 0; at < buffer.bytes(); at += bytes)
    device::copy_to_device(buffer.data() + at, pattern.data(), std::min(bytes, buffer.bytes() - at), stream);
}

/// One set of tensors.
struct Tensors {
  Tensors(const Shape& s, device::StreamHandle stream)
      : narrow_a(0, s.elements() * 2),
        narrow_b(0, s.elements() * 2),
        wide(0, s.elements() * 4),
        scalars(0, s.rows * s.heads * 4),
        more_scalars(0, s.rows * s.heads * 4),
        from(0, s.elements() * 6),
        to(0, s.elements() * 6) {
    for (const device::DeviceBuffer* buffer : {&narrow_a, &narrow_b, &wide, &scalars, &more_scalars, &from})
      fill_random(*buffer, stream);
    a = {narrow_a.data(), DType::bf16, 1, s.rows, {0, s.heads}, s.width};
    b = a, b.data = narrow_b.data();
    w = {wide.data(), DType::fp32, 1, s.rows, {0, s.heads}, s.width};
    lse = {scalars.data(), DType::fp32, 1, s.rows, {0, s.heads}, 1};
    lse_i = {more_scalars.data(), DType::fp32, 1, s.rows, {0, s.heads}, 1};
    lse_i.row_stride = 1, lse_i.head_stride = s.rows;
  }
  device::DeviceBuffer narrow_a, narrow_b, wide, scalars, more_scalars, from, to;
  kernels::View a, b, w, lse, lse_i;
};

struct ComputeOp {
  std::string name;
  i64 bytes;
  std::function<void(const Tensors&)> run;
};

class Bench {
 public:
  Bench(const Shape& shape, int rounds, bool json) : shape_(shape), rounds_(rounds), json_(json) {
    for (int i = 0; i < sets; ++i) tensors_.emplace_back(shape, stream_.get());
  }
  void compare(const ComputeOp& work) {
    std::vector<double> own, copies;
    const auto copy_bytes = static_cast<std::size_t>(work.bytes / 2);
    for (int round = -2; round < rounds_; ++round) {
      const double a = timed([&] {
        for (const Tensors& t : tensors_) work.run(t);
      });
      const double b = timed([&] {
        for (const Tensors& t : tensors_)
          device::check_cuda(cudaMemcpyAsync(t.to.data(), t.from.data(), copy_bytes, cudaMemcpyDeviceToDevice,
                                             stream_.get()),
                             "a copy");
      });
      if (round < 0) continue;
      own.push_back(a / sets);
      copies.push_back(b / sets);
    }
    const double x = median(own), y = median(copies), bytes = static_cast<double>(work.bytes);
    if (json_)
      std::printf(R"({"work": "%s", "microseconds": %.6g, "gb_s": %.6g, "copy_gb_s": %.6g})"
                  "\n",
                  work.name.c_str(), x * 1e6, bytes / x * 1e-9, bytes / y * 1e-9);
    else
      std::printf("%-34s %8.1f us %7.0f GB/s   copy %7.0f GB/s   ratio %.3f\n", work.name.c_str(), x * 1e6,
                  bytes / x * 1e-9, bytes / y * 1e-9, y / x);
    std::fflush(stdout);
  }
  [[nodiscard]] device::StreamHandle stream() const { return stream_.get(); }
  [[nodiscard]] const Shape& shape() const { return shape_; }

 private:
  template <class F>
  double timed(F&& f) {
    begin_.record(stream_.get());
    f();
    end_.record(stream_.get());
    return device::seconds_between(begin_, end_);
  }
  Shape shape_;
  int rounds_;
  bool json_;
  device::Stream stream_{0};
  device::Event begin_{0, device::EventUse::timing}, end_{0, device::EventUse::timing};
  std::vector<Tensors> tensors_;
};

/// What cudaMemcpy2D makes of rows at a pitch.
void driver_copy(const kernels::cuda::StridedCopy& copy, device::StreamHandle stream) {
  const auto bytes = [&](i64 n) { return static_cast<std::size_t>(n * bytes_of(copy.to_type)); };
  device::check_cuda(
      cudaMemcpy2DAsync(copy.to, bytes(copy.axes[0].to), copy.from, bytes(copy.axes[0].from),
                        bytes(copy.axes[1].count), static_cast<std::size_t>(copy.axes[0].count),
                        cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpy2DAsync");
}

void all(Bench& bench) {
  const Shape s = bench.shape();
  const device::StreamHandle stream = bench.stream();
  const i64 n = s.elements(), scalars = s.rows * s.heads * 4;
  const Range rows{0, s.rows}, heads{0, s.heads}, half{0, s.heads / 2};
  bench.compare({"delta bf16 x bf16", 4 * n + scalars, [=](const Tensors& t) {
                   kernels::cuda::launch_delta({t.a, t.b, t.lse, t.lse, heads}, stream);
                 }});
  bench.compare({"delta bf16 x fp32", 6 * n + scalars, [=](const Tensors& t) {
                   kernels::cuda::launch_delta({t.a, t.w, t.lse, t.lse, heads}, stream);
                 }});
  bench.compare({"merge bf16 into fp32", 10 * n + 3 * scalars, [=](const Tensors& t) {
                   kernels::cuda::launch_merge({t.a, t.lse_i, t.w, t.lse, rows, heads}, stream);
                 }});
  bench.compare({"merge into a overwrite state", 6 * n + 2 * scalars, [=](const Tensors& t) {
                   kernels::cuda::launch_merge({t.a, t.lse_i, t.w, t.lse, rows, heads, true}, stream);
                 }});
  bench.compare({"accumulate fp32 += bf16", 10 * n, [=](const Tensors& t) {
                   kernels::cuda::launch_accumulate(t.a, t.w, rows, heads, WriteMode::accumulate, stream);
                 }});
  bench.compare({"cast bf16 to fp32", 6 * n, [=](const Tensors& t) {
                   kernels::cuda::launch_accumulate(t.a, t.w, rows, heads, WriteMode::overwrite, stream);
                 }});
  bench.compare({"cast fp32 to bf16", 6 * n, [=](const Tensors& t) {
                   kernels::cuda::launch_copy(kernels::cuda::region_copy(t.w, {rows, heads}, t.a,
                                                                         {rows, heads}, WriteMode::overwrite),
                                              stream);
                 }});
  const auto packed = [=](const Tensors& t) {
    kernels::View to(t.to.data(), DType::bf16, 1, s.rows, half, s.width);
    return kernels::cuda::region_copy(t.a, {rows, half}, to, {rows, half}, WriteMode::overwrite);
  };
  bench.compare(
      {"half of the heads, driver's copy", 2 * n, [=](const Tensors& t) { driver_copy(packed(t), stream); }});
  bench.compare({"half of the heads, kernel", 2 * n,
                 [=](const Tensors& t) { kernels::cuda::launch_copy_kernel(packed(t), stream); }});
  const auto one = [=](const Tensors& t) {
    kernels::View to(t.to.data(), DType::bf16, 1, s.rows, {0, 1}, s.width);
    return kernels::cuda::region_copy(t.a, {rows, {0, 1}}, to, {rows, {0, 1}}, WriteMode::overwrite);
  };
  bench.compare(
      {"one head, driver's copy", 4 * n / s.heads, [=](const Tensors& t) { driver_copy(one(t), stream); }});
  bench.compare({"one head, kernel", 4 * n / s.heads,
                 [=](const Tensors& t) { kernels::cuda::launch_copy_kernel(one(t), stream); }});
  bench.compare(
      {"head-first to batch-first", 4 * n, [=](const Tensors& t) {
         kernels::View to = t.b;
         to.row_stride = s.width, to.head_stride = s.rows * s.width;
         kernels::cuda::launch_copy(
             kernels::cuda::region_copy(t.a, {rows, heads}, to, {rows, heads}, WriteMode::overwrite), stream);
       }});
  bench.compare({"statistics packed", 2 * scalars, [=](const Tensors& t) {
                   kernels::cuda::launch_pack_lse(t.lse, rows, heads, reinterpret_cast<float*>(t.lse_i.data),
                                                  stream);
                 }});
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) try {
  usp::bench::Options options(argc, argv);
  const bool json = options.flag("--json");
  usp::bench::Shape shape;
  shape = {options.number(0, shape.rows), options.number(1, shape.heads), options.number(2, shape.width)};
  if (!json)
    std::printf("%s, %lld rows of %lld heads of %lld\n", usp::device::device_info(0).name.c_str(),
                static_cast<long long>(shape.rows), static_cast<long long>(shape.heads),
                static_cast<long long>(shape.width));
  usp::bench::Bench bench(shape, options.number(3, 15), json);
  usp::bench::all(bench);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
