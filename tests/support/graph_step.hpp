// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_graph.hpp"

#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/attention.hpp"

#include <cstring>
#include <memory>
#include <random>
#include <vector>

/// A step of attention on one rank's GPU.
namespace usp::test {

inline constexpr i64 tokens = 520;
inline constexpr int heads = 4, kv_heads = 2, width = 64;

[[nodiscard]] inline AttentionPlan plan_of(Backend backend, int ring, int ulysses) {
  AttentionPlan p;
  p.backend = backend;
  p.mesh = {1, ring, ulysses};
  p.shape = {1, tokens, tokens, heads, kv_heads, width, width, DType::bf16};
  p.band = {0, unbounded};
  return p;
}

[[nodiscard]] inline std::vector<std::uint16_t> noise(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& x : values) {
    const float f = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &f, sizeof bits);
    x = static_cast<std::uint16_t>(bits >> 16);
  }
  return values;
}

class DeviceTensor {
 public:
  DeviceTensor(const device::CallStream& stream, i64 rows, int of_heads)
      : stream_(stream),
        buffer_(stream.device(), rows * of_heads * width * 2),
        view_(buffer_.data(), DType::bf16, 1, rows, {0, of_heads}, width) {
    device::set_device_bytes(buffer_.data(), 0, buffer_.bytes(), stream.get());
  }
  void randomize(unsigned seed) {
    const auto values = noise(view_.elements(), seed);
    device::copy_to_device(buffer_.data(), values.data(), buffer_.bytes(), stream_.get());
    stream_.synchronize();
  }
  [[nodiscard]] std::vector<std::uint16_t> content() const {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(view_.elements()));
    device::copy_to_host(values.data(), buffer_.data(), buffer_.bytes(), stream_.get());
    stream_.synchronize();
    return values;
  }
  void clear() { device::set_device_bytes(buffer_.data(), 0xff, buffer_.bytes(), stream_.get()); }
  [[nodiscard]] const kernels::View& view() const { return view_; }

 private:
  const device::CallStream& stream_;
  device::DeviceBuffer buffer_;
  kernels::View view_;
};

/// The tensors of one rank, and a step on them.
struct Step {
  Step(const device::CallStream& stream, AttentionOperator& op, i64 rows)
      : attention(op),
        q(stream, rows, heads),
        k(stream, rows, kv_heads),
        v(stream, rows, kv_heads),
        d_out(stream, rows, heads),
        out(stream, rows, heads),
        dq(stream, rows, heads),
        dk(stream, rows, kv_heads),
        dv(stream, rows, kv_heads) {}
  void randomize(unsigned seed) {
    for (DeviceTensor* t : {&q, &k, &v, &d_out}) t->randomize(++seed);
  }
  void run() {
    const AttentionInputs in{q.view(), k.view(), v.view()};
    attention.forward(in, out.view());
    attention.backward(in, d_out.view(), {dq.view(), dk.view(), dv.view(), nullptr});
  }
  [[nodiscard]] std::vector<std::vector<std::uint16_t>> results() const {
    return {out.content(), dq.content(), dk.content(), dv.content()};
  }
  void clear() {
    for (DeviceTensor* t : {&out, &dq, &dk, &dv}) t->clear();
  }

  AttentionOperator& attention;
  DeviceTensor q, k, v, d_out, out, dq, dk, dv;
};

/// Gradients repeat bit for bit.
[[nodiscard]] inline std::unique_ptr<kernels::AttentionKernel> make_repeatable(Backend backend,
                                                                               kernels::Memory& memory) {
  return kernels::factory_of(backend).make(memory, true);
}

}  // namespace usp::test
