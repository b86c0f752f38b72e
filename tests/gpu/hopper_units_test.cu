// SPDX-License-Identifier: Apache-2.0
// Every product and the tensor copies of the hopper kernels, on whole numbers, whose sums are exact.
#include "ptx.cuh"
#include "tensor_map.hpp"
#include "wgmma.cuh"

#include "usp/device/check.cuda.hpp"
#include "usp/device/device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace usp::kernels::hopper {
namespace {

constexpr int depth = 128, product_rows = 64;

/// Memory of a GPU, seen from the host.
template <class T>
class Mirror {
 public:
  explicit Mirror(const std::vector<T>& host) : buffer_(0, bytes(host.size())), count_(host.size()) {
    device::check_cuda(
        cudaMemcpy(buffer_.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  [[nodiscard]] T* get() const { return reinterpret_cast<T*>(buffer_.data()); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> host(count_);
    device::check_cuda(cudaDeviceSynchronize(), "the kernel");
    device::check_cuda(cudaMemcpy(host.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost),
                       "cudaMemcpy");
    return host;
  }

 private:
  static i64 bytes(std::size_t count) { return static_cast<i64>(count * sizeof(T)); }
  device::DeviceBuffer buffer_;
  std::size_t count_;
};

/// Place of an element of a tile of 64 columns, in bytes.
__device__ int swizzled(int row, int column) {
  return row * tile_row_bytes + (((column >> 3) ^ (row & 7)) << 4) + 2 * (column & 7);
}

/// A matrix of outer by depth numbers becomes tiles: rows along the outer side (Major::k) or along the depth.
template <class T>
__device__ void place_operand(char* shared, const float* matrix, int outer, Major major) {
  const int rows = major == Major::k ? outer : depth;
  for (int at = static_cast<int>(threadIdx.x); at < outer * depth; at += 128) {
    const int o = at / depth, d = at % depth;
    const int row = major == Major::k ? o : d, column = major == Major::k ? d : o;
    const int tile = column / tile_columns * rows * tile_row_bytes;
    *reinterpret_cast<typename T::type*>(shared + tile + swizzled(row, column % tile_columns)) =
        T::round(matrix[at]);
  }
}

enum class Left { shared_k, shared_mn, registers };

/// Of b the columns from `first` on.
template <class T, int N, Left left, Major b_major, int first>
__global__ void multiply(const float* a, const float* b, float* out) {
  extern __shared__ char memory[];
  char* const base = memory + ((1024 - (shared_address(memory) & 1023)) & 1023);
  char* const b_at = base + 2 * product_rows * depth;
  constexpr Major a_major = left == Left::shared_mn ? Major::mn : Major::k;
  place_operand<T>(base, a, product_rows, a_major);
  place_operand<T>(b_at, b, first + N, b_major);
  fence_async_proxy();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) & 31,
            row = 16 * (static_cast<int>(threadIdx.x) >> 5) + (lane >> 2);
  const Operand left_operand(shared_address(base), a_major == Major::k ? product_rows : depth);
  const Operand right_operand = Operand(shared_address(b_at), b_major == Major::k ? N : depth)
                                    .moved(first * tile_row_bytes / tile_columns);
  std::uint32_t fragments[depth / 16][4];
  for (int s = 0; s < depth / 16; ++s)
    for (int i = 0; i < 4; ++i) {
      const float* from = a + (row + 8 * (i & 1)) * depth + 16 * s + 8 * (i >> 1) + 2 * (lane & 3);
      fragments[s][i] = pack<T>(from[0], from[1]);
    }
  float sums[N / 2];
  products_begin();
#pragma unroll
  for (int s = 0; s < depth / 16; ++s) {
    const std::uint64_t right = right_operand.step < b_major, b_major == Major::k ? N : depth > (s);
    if constexpr (left == Left::registers)
      RegisterProduct<T, N, b_major>::add(sums, fragments[s], right, s != 0);
    else
      SharedProduct<T, N, a_major, b_major>::add(
          sums, left_operand.step < a_major, a_major == Major::k ? product_rows : depth > (s), right, s != 0);
  }
  products_commit();
  products_wait<0>();
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      out[(row + 8 * (e >> 1)) * N + 8 * n + 2 * (lane & 3) + (e & 1)] = sums[4 * n + e];
}

std::vector<float> whole_numbers(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers) x = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return numbers;
}

/// "" or the first place that differs from the sum in fp64.
template <class T, int N, Left left, Major b_major, int first = 0>
std::string product_fault() {
  static_assert(first == 0 || b_major == Major::mn);
  const std::vector<float> a = whole_numbers(product_rows * depth, 1),
                           b = whole_numbers((first + N) * depth, 2);
  const Mirror<float> device_a(a), device_b(b), out(std::vector<float>(product_rows * N, -1));
  constexpr int bytes = 2 * depth * (product_rows + (N + 63) / 64 * 64) + 1024;
  auto* kernel = multiply<T, N, left, b_major, first>;
  device::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "cudaFuncSetAttribute");
  kernel<<<1, 128, bytes>>>(device_a.get(), device_b.get(), out.get());
  device::check_launch("the product");
  const std::vector<float> got = out.read();
  for (int i = 0; i < product_rows; ++i)
    for (int j = 0; j < N; ++j) {
      double sum = 0;
      for (int d = 0; d < depth; ++d)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * depth + d)]) *
               static_cast<double>(b[static_cast<std::size_t>((first + j) * depth + d)]);
      if (static_cast<double>(got[static_cast<std::size_t>(i * N + j)]) != sum)
        return "row " + std::to_string(i) + ", column " + std::to_string(j) + ": " +
               std::to_string(got[static_cast<std::size_t>(i * N + j)]) + " instead of " +
               std::to_string(sum);
    }
  return "";
}

template <class T, int N>
void expect_products() {
  EXPECT_EQ((product_fault<T, N, Left::shared_k, Major::k>()), "") << "a by rows, b by rows, " << N;
  EXPECT_EQ((product_fault<T, N, Left::shared_k, Major::mn>()), "") << "a by rows, b by columns, " << N;
  EXPECT_EQ((product_fault<T, N, Left::shared_mn, Major::k>()), "") << "a by columns, b by rows, " << N;
  EXPECT_EQ((product_fault<T, N, Left::shared_mn, Major::mn>()), "") << "a by columns, b by columns, " << N;
  EXPECT_EQ((product_fault<T, N, Left::registers, Major::k>()), "") << "a in registers, b by rows, " << N;
  EXPECT_EQ((product_fault<T, N, Left::registers, Major::mn>()), "") << "a in registers, b by columns, " << N;
}

/// One box, read back as rows and columns.
__global__ void read_box(const __grid_constant__ CUtensorMap map, BoxPlace at, int rows, std::uint16_t* out) {
  extern __shared__ char memory[];
  __shared__ std::uint64_t barrier_memory;
  char* const base = memory + ((1024 - (shared_address(memory) & 1023)) & 1023);
  const Barrier barrier{shared_address(&barrier_memory)};
  if (threadIdx.x == 0) {
    barrier.init(1);
    fence_barrier_init();
    barrier.arrive_with_bytes(rows * tile_row_bytes);
    load_box(shared_address(base), map, at, barrier);
  }
  __syncthreads();
  barrier.wait(0);
  for (int i = static_cast<int>(threadIdx.x); i < rows * tile_columns; i += static_cast<int>(blockDim.x))
    out[i] = *reinterpret_cast<std::uint16_t*>(base + swizzled(i / tile_columns, i % tile_columns));
}

class HopperUnits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "there is no GPU";
    if (device::device_info(0).compute_major != 9)
      GTEST_SKIP() << "the GPU is none of compute capability 9.0";
  }
};

TEST_F(HopperUnits, ProductsAreExact) {
  expect_products<Bf16, 32>();
  expect_products<Bf16, 48>();
  expect_products<Bf16, 64>();
  expect_products<Bf16, 80>();
  expect_products<Bf16, 96>();
  expect_products<Bf16, 128>();
  expect_products<Bf16, 176>();
  expect_products<Bf16, 192>();
  expect_products<Bf16, 256>();
  expect_products<Fp16, 32>();
  expect_products<Fp16, 64>();
  expect_products<Fp16, 128>();
  expect_products<Fp16, 192>();
}

TEST_F(HopperUnits, ProductsBeginWithinATileOfColumns) {
  EXPECT_EQ((product_fault<Bf16, 32, Left::shared_mn, Major::mn, 32>()), "");
  EXPECT_EQ((product_fault<Fp16, 32, Left::shared_mn, Major::mn, 32>()), "");
}

TEST_F(HopperUnits, BoxesFollowTheStridesOfTheView) {
  // Width 72 in rows of 80: the second box of columns has 8 of the view's, the rest is no part of it.
  constexpr i64 batch = 2, rows = 100, heads = 3, width = 72, padded = 80;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(batch * heads * rows * padded));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i + 1);
  const Mirror<std::uint16_t> memory(values);
  ConstView view(reinterpret_cast<const std::byte*>(memory.get()), DType::bf16, batch, rows, {5, 5 + heads},
                 width);
  view.row_stride = padded, view.head_stride = rows * padded, view.batch_stride = heads * rows * padded;
  constexpr int box_rows = 64;
  const CUtensorMap map = row_boxes(view, box_rows);
  for (const BoxPlace at : {BoxPlace{0, 0, 0, 0}, BoxPlace{64, 2, 7, 1}, BoxPlace{0, 1, 70, 1}}) {
    const Mirror<std::uint16_t> out(std::vector<std::uint16_t>(box_rows * tile_columns, 7));
    read_box<<<1, 128, box_rows * tile_row_bytes + 1024>>>(map, at, box_rows, out.get());
    device::check_launch("the copy");
    const std::vector<std::uint16_t> got = out.read();
    for (int r = 0; r < box_rows; ++r)
      for (int c = 0; c < tile_columns; ++c) {
        const i64 row = at.row + r, column = at.column + c;
        const bool inside = row < rows && column < width;
        const i64 place = at.batch * view.batch_stride + at.head * view.head_stride + row * padded + column;
        ASSERT_EQ(got[static_cast<std::size_t>(r * tile_columns + c)],
                  inside ? values[static_cast<std::size_t>(place)] : 0)
            << "row " << row << ", column " << column << ", head " << at.head;
      }
  }
}

}  // namespace
}  // namespace usp::kernels::hopper
