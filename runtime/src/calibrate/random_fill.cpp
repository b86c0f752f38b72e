// SPDX-License-Identifier: Apache-2.0
#include "random_fill.hpp"

#include "usp/runtime/host_tensor.hpp"

#include <algorithm>
#include <random>

namespace usp::measure {
namespace {

constexpr i64 boundary = 256;

}  // namespace

void fill_random(kernels::Memory& memory, const kernels::ConstView& view) {
  constexpr i64 most = 1 << 16;
  const i64 elements = view.elements(), block = std::min(elements, most);
  HostTensor values(DType::fp64, 1, block, {0, 1}, 1);
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  auto* const numbers = reinterpret_cast<double*>(values.bytes().data());
  for (i64 i = 0; i < block; ++i) numbers[i] = normal(random);
  const HostTensor typed = values.as(view.type);
  auto* const target = const_cast<std::byte*>(view.data);
  for (i64 first = 0; first < elements; first += block)
    memory.from_host(target + first * bytes_of(view.type), typed.bytes().data(),
                     std::min(block, elements - first) * bytes_of(view.type));
  memory.synchronize();
}

void Tensors::reserve(i64 bytes, i64 parts) {
  arena_->reserve(bytes + parts * boundary);
  memory_.set_bytes(arena_->data(), 0, arena_->bytes());
  memory_.synchronize();
}

kernels::View Tensors::take(DType type, i64 rows, i64 heads, i64 width) {
  kernels::View view(arena_->data() + used_, type, 1, rows, {0, heads}, width);
  used_ += (view.elements() * bytes_of(type) + boundary - 1) / boundary * boundary;
  return view;
}

}  // namespace usp::measure
