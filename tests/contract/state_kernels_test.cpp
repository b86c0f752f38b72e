// SPDX-License-Identifier: Apache-2.0
// Merge, delta and accumulation on a GPU against the same in fp64.
#include "attention_case.hpp"
#include "state/state.hpp"

#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace usp::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr DType narrow_types[] = {DType::bf16, DType::fp16, DType::fp32};

/// A tensor here and its copy on the device.
class Both {
 public:
  Both(Tensor4 tensor, device::StreamHandle stream) : host(std::move(tensor)), stream_(stream) {
    const auto bytes = static_cast<i64>(host.memory().size());
    buffer_ = device::DeviceBuffer(0, bytes);
    device::copy_to_device(buffer_.data(), host.memory().data(), bytes, stream);
  }
  [[nodiscard]] kernels::View view() const {
    kernels::View v = host.view();
    v.data = buffer_.data();
    return v;
  }
  [[nodiscard]] std::vector<double> values() {
    device::copy_to_host(host.view().data, buffer_.data(), buffer_.bytes(), stream_);
    return host.values();
  }
  Tensor4 host;

 private:
  device::DeviceBuffer buffer_;
  device::StreamHandle stream_;
};

class StateKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "there is no GPU";
    stream_ = std::make_unique<device::Stream>(0);
  }
  Tensor4 noise(DType type, i64 rows, i64 width, Order order) {
    Tensor4 t(type, 2, rows, heads, width, order);
    std::vector<double> values(static_cast<std::size_t>(t.view().elements()));
    for (double& x : values) x = normal_(random_);
    t.set(values);
    return t;
  }
  [[nodiscard]] Both both(Tensor4 t) { return {std::move(t), stream_->get()}; }
  [[nodiscard]] double* device_doubles(const std::vector<double>& values) {
    const auto bytes = static_cast<i64>(values.size() * 8);
    doubles_.emplace_back(0, bytes);
    device::copy_to_device(doubles_.back().data(), values.data(), bytes, stream_->get());
    return reinterpret_cast<double*>(doubles_.back().data());
  }

  static constexpr Range heads{3, 8};
  std::unique_ptr<device::Stream> stream_;
  std::vector<device::DeviceBuffer> doubles_;
  std::mt19937 random_{7};
  std::normal_distribution<double> normal_;
};

/// What a merge of one row does to o and lse.
void merge_row(double& lse, double own_lse, double* o, const double* own, i64 width) {
  if (own_lse == -infinity) return;
  const double most = std::max(lse, own_lse), a = std::exp(lse - most), b = std::exp(own_lse - most);
  for (i64 w = 0; w < width; ++w) o[w] = (a * o[w] + b * own[w]) / (a + b);
  lse = most + std::log(a + b);
}

TEST_F(StateKernels, MergeOfEveryTypeAndWidth) {
  constexpr i64 rows = 50, block_rows = 33, first = 9;
  for (const DType type : narrow_types)
    for (const Order order : {Order::batch_first, Order::head_first, Order::padded})
      for (const i64 width : {1, 8, 64, 80, 128, 256})
        for (const bool overwrite : {false, true}) {
          Tensor4 lse_i = noise(DType::fp32, block_rows, 1, Order::head_first);
          std::vector<double> own = lse_i.values();
          for (std::size_t i = 0; i < own.size(); ++i)
            own[i] = i % 7 == 0 ? -infinity : own[i] * (i % 3 == 0 ? 200 : 1);
          lse_i.set(own);
          Tensor4 lse = noise(DType::fp32, rows, 1, order);
          std::vector<double> carried = lse.values();
          for (std::size_t i = 0; i < carried.size(); i += 5) carried[i] = -infinity;
          lse.set(carried);
          const std::vector<double> sinks{0, 0, 0, 1, -2, 0.5, -infinity, 3};
          Both o_i = both(noise(type, block_rows, width, Order::batch_first)), l_i = both(lse_i);
          Both o = both(noise(DType::fp32, rows, width, order)), l = both(lse);
          const std::vector<double> in = o_i.host.values();
          std::vector<double> expected = o.host.values(), expected_lse = l.host.values();
          for (i64 r = 0; r < block_rows; ++r)
            for (i64 b = 0; b < 2; ++b)
              for (i64 h = 0; h < heads.size(); ++h) {
                const auto from = static_cast<std::size_t>((r * 2 + b) * heads.size() + h);
                const auto to = static_cast<std::size_t>(((r + first) * 2 + b) * heads.size() + h);
                double* at = expected.data() + to * static_cast<std::size_t>(width);
                if (overwrite) {
                  std::fill_n(at, width, 0);
                  expected_lse[to] = sinks[static_cast<std::size_t>(h + heads.begin)];
                }
                merge_row(expected_lse[to], own[from], at, in.data() + from * static_cast<std::size_t>(width),
                          width);
              }
          kernels::cuda::launch_merge({o_i.view(),
                                       l_i.view(),
                                       o.view(),
                                       l.view(),
                                       {first, first + block_rows},
                                       heads,
                                       overwrite,
                                       overwrite ? device_doubles(sinks) : nullptr},
                                      stream_->get());
          ASSERT_LT(error(o.values(), expected), 1e-6) << width;
          ASSERT_LT(error(l.values(), expected_lse), 1e-6) << width;
        }
}

TEST_F(StateKernels, DeltaAndItsSinks) {
  for (const DType grad : narrow_types)
    for (const DType out : narrow_types)
      for (const Order order : {Order::batch_first, Order::head_first, Order::padded})
        for (const i64 width : {1, 24, 64, 128, 192, 256}) {
          Both d_o = both(noise(grad, 37, width, order)), o = both(noise(out, 37, width, Order::batch_first));
          Both lse = both(noise(DType::fp32, 37, 1, order)), delta = both(noise(DType::fp32, 37, 1, order));
          const std::vector<double> sinks{0, 0, 0, 1, -2, 0.5, 2, 3};
          double* d_sink = device_doubles(std::vector<double>(8, 10.0));
          kernels::cuda::launch_delta(
              {d_o.view(), o.view(), lse.view(), delta.view(), heads, device_doubles(sinks), d_sink},
              stream_->get());
          const std::vector<double> a = d_o.host.values(), b = o.host.values(), l = lse.host.values();
          std::vector<double> expected(l.size(), 0), expected_sink(8, 10.0), sink(8);
          for (std::size_t row = 0; row < l.size(); ++row) {
            const auto w = static_cast<std::size_t>(width), h = row % 5 + 3;
            for (std::size_t i = row * w; i < (row + 1) * w; ++i) expected[row] += a[i] * b[i];
            // No sink exceeds the lse of a softmax that it joins; of others its weight is 1.
            expected_sink[h] -= std::exp(std::min(0.0, sinks[h] - l[row])) * expected[row];
          }
          ASSERT_LT(error(delta.values(), expected), 1e-6) << width;
          device::copy_to_host(sink.data(), reinterpret_cast<std::byte*>(d_sink), 64, stream_->get());
          ASSERT_LT(error(sink, expected_sink), 1e-5) << width;
        }
}

TEST_F(StateKernels, AccumulationAddsOrPuts) {
  for (const DType type : narrow_types)
    for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
      Both from = both(noise(type, 20, 64, Order::batch_first)),
           to = both(noise(DType::fp32, 40, 64, Order::head_first));
      std::vector<double> expected = to.host.values();
      const std::vector<double> add = from.host.values();
      const std::size_t shift = expected.size() / 40 * 7;
      for (std::size_t i = 0; i < add.size(); ++i)
        expected[i + shift] = (mode == WriteMode::accumulate ? expected[i + shift] : 0) + add[i];
      kernels::cuda::launch_accumulate(from.view(), to.view(), {7, 27}, heads, mode, stream_->get());
      EXPECT_LT(error(to.values(), expected), 1e-7);
    }
}

TEST_F(StateKernels, PackedStatisticsHideEmptyRows) {
  Both lse = both(noise(DType::fp32, 12, 1, Order::batch_first));
  std::vector<double> values = lse.host.values();
  values[2 * 5 * 4] = -infinity;  // row 4, batch 0, head 3
  Tensor4 t = lse.host;
  t.set(values);
  lse = both(t);
  const device::DeviceBuffer packed(0, 2 * 5 * 6 * 4);
  kernels::cuda::launch_pack_lse(lse.view(), {3, 9}, heads, reinterpret_cast<float*>(packed.data()),
                                 stream_->get());
  std::vector<float> out(60);
  device::copy_to_host(out.data(), packed.data(), 240, stream_->get());
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 5; ++h)
      for (std::size_t r = 0; r < 6; ++r) {
        const double x = values[((r + 3) * 2 + b) * 5 + h];
        EXPECT_EQ(static_cast<double>(out[(b * 5 + h) * 6 + r]), x == -infinity ? infinity : x);
      }
}

}  // namespace
}  // namespace usp::test
