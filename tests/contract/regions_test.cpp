// SPDX-License-Identifier: Apache-2.0
// Copies of regions: every pair of types, every layout, overwrite and accumulate, against element-by-element
// conversion.
#include "usp/kernels/regions.hpp"

#include "attention_case.hpp"
#include "memory_under_test.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/numeric_types.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace usp::test {
namespace {

constexpr DType types[] = {DType::bf16, DType::fp16, DType::fp32, DType::fp64};
constexpr Order orders[] = {Order::batch_first, Order::sequence_first, Order::head_first, Order::padded};

/// x as a type would store it.
double rounded(DType type, double x) {
  if (type == DType::bf16) return static_cast<double>(to_float(to_bf16(static_cast<float>(x))));
  if (type == DType::fp16) return static_cast<double>(to_float(to_fp16(static_cast<float>(x))));
  return type == DType::fp32 ? static_cast<double>(static_cast<float>(x)) : x;
}

double element(const kernels::View& v, i64 b, i64 r, i64 h, i64 w) {
  const std::byte* at = v.at(b, r, h) + w * bytes_of(v.type);
  std::uint16_t half;
  float single;
  double whole;
  std::memcpy(&half, at, sizeof half);
  switch (v.type) {
    case DType::bf16:
      return static_cast<double>(to_float(bf16{half}));
    case DType::fp16:
      return static_cast<double>(to_float(fp16{half}));
    case DType::fp32:
      std::memcpy(&single, at, sizeof single);
      return static_cast<double>(single);
    case DType::fp64:
      std::memcpy(&whole, at, sizeof whole);
      return whole;
  }
  throw InternalError("unknown element type");
}

Tensor4 noisy(DType type, Order order, Range heads, unsigned seed, i64 width = 5) {
  Tensor4 t(type, 2, 9, heads, width, order);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(t.view().elements()));
  for (double& x : values) x = normal(random);
  t.set(values);
  return t;
}

const kernels::ViewRegion source{{2, 7}, {3, 6}}, target{{4, 9}, {1, 4}};

/// Every element of `to` is what it was before, or in the region what was expected.
void expect_landed(const Tensor4& from, const Tensor4& before, const Tensor4& to, WriteMode mode,
                   DType wire) {
  const kernels::View f = from.view(), o = before.view(), t = to.view();
  for (i64 b = 0; b < t.batch; ++b)
    for (i64 r = 0; r < t.rows; ++r)
      for (i64 h = t.heads.begin; h < t.heads.end; ++h)
        for (i64 w = 0; w < t.width; ++w) {
          const bool inside = r >= 4 && r < 9 && h >= 1 && h < 4;
          const double old = element(o, b, r, h, w);
          double expected = old;
          if (inside) {
            const double sent = rounded(wire, element(f, b, r - 2, h + 2, w));
            const bool wide = t.type == DType::fp64 || wire == DType::fp64;
            const double sum =
                wide ? old + sent : static_cast<double>(static_cast<float>(old) + static_cast<float>(sent));
            expected = rounded(t.type, mode == WriteMode::overwrite ? sent : sum);
          }
          ASSERT_EQ(element(t, b, r, h, w), expected) << b << " " << r << " " << h << " " << w;
        }
}

class Regions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (memory_under_test() == nullptr) GTEST_SKIP() << "there is no GPU";
  }
  [[nodiscard]] static kernels::Memory& memory() { return *memory_under_test(); }
};

TEST_F(Regions, EveryPairOfTypesAndLayouts) {
  for (const DType a : types)
    for (const DType b : types)
      for (const Order from_order : orders)
        for (const Order to_order : orders)
          for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
            const Tensor4 from = noisy(a, from_order, {2, 7}, 1), before = noisy(b, to_order, {0, 5}, 2);
            Tensor4 to = before;
            memory().copy_region(from.view(), source, to.view(), target, mode);
            expect_landed(from, before, to, mode, a);
          }
}

TEST_F(Regions, RowsOfWholeVectors) {
  for (const DType a : types)
    for (const DType b : types)
      for (const Order order : orders)
        for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
          const Tensor4 from = noisy(a, order, {2, 7}, 5, 48),
                        before = noisy(b, Order::head_first, {0, 5}, 6, 48);
          Tensor4 to = before;
          memory().copy_region(from.view(), source, to.view(), target, mode);
          expect_landed(from, before, to, mode, a);
        }
}

TEST_F(Regions, PayloadsOfEveryWireType) {
  for (const DType a : types)
    for (const DType wire : types)
      for (const DType b : types)
        for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
          const Tensor4 from = noisy(a, Order::padded, {2, 7}, 3),
                        before = noisy(b, Order::head_first, {0, 5}, 4);
          Tensor4 to = before;
          std::vector<std::byte> payload(static_cast<std::size_t>(5 * 2 * 3 * 5 * bytes_of(wire)));
          EXPECT_EQ(memory().pack_region(from.view(), source, wire, payload.data()),
                    payload.data() + payload.size());
          EXPECT_EQ(memory().unpack_region(payload.data(), wire, to.view(), target, mode),
                    payload.data() + payload.size());
          expect_landed(from, before, to, mode, wire);
        }
}

TEST_F(Regions, PayloadOrderIsRowBatchHeadElement) {
  Tensor4 t(DType::fp32, 2, 3, {0, 2}, 2, Order::head_first);
  for (i64 r = 0; r < 3; ++r)
    for (i64 b = 0; b < 2; ++b)
      for (i64 h = 0; h < 2; ++h)
        for (i64 w = 0; w < 2; ++w) {
          const auto x = static_cast<float>(1000 * r + 100 * b + 10 * h + w);
          std::memcpy(t.view().at(b, r, h) + 4 * w, &x, sizeof x);
        }
  std::vector<float> payload(8);
  memory().pack_region(t.view(), {{1, 2}, {0, 2}}, DType::fp32, reinterpret_cast<std::byte*>(payload.data()));
  EXPECT_EQ(payload, (std::vector<float>{1000, 1001, 1010, 1011, 1100, 1101, 1110, 1111}));
}

TEST_F(Regions, SameTypesKeepTheirBits) {
  for (const DType type : types) {
    Tensor4 from(type, 1, 2, {0, 1}, 8), to = from;
    const i64 bytes = 16 * bytes_of(type);
    for (i64 i = 0; i < bytes; ++i)
      from.view().data[i] = static_cast<std::byte>(i % 2 == 0 ? 0xff : 0x7f + i);
    memory().copy_region(from.view(), {{0, 2}, {0, 1}}, to.view(), {{0, 2}, {0, 1}}, WriteMode::overwrite);
    EXPECT_EQ(from.memory(), to.memory());
  }
}

TEST_F(Regions, NarrowTypesRoundToNearestEven) {
  const auto through = [](DType type, float x) {
    Tensor4 wide(DType::fp32, 1, 1, {0, 1}, 1), narrow(type, 1, 1, {0, 1}, 1);
    wide.set(static_cast<double>(x));
    memory().copy_region(wide.view(), {{0, 1}, {0, 1}}, narrow.view(), {{0, 1}, {0, 1}},
                         WriteMode::overwrite);
    return element(narrow.view(), 0, 0, 0, 0);
  };
  EXPECT_EQ(through(DType::bf16, 1 + 0x1p-8F), 1.0);           // half way: to even
  EXPECT_EQ(through(DType::bf16, 1 + 0x3p-8F), 1 + 0x1p-6);    // half way: to even, upwards
  EXPECT_EQ(through(DType::bf16, 1 + 0x1.1p-8F), 1 + 0x1p-7);  // above half way
  EXPECT_EQ(through(DType::fp16, 1 + 0x1p-11F), 1.0);
  EXPECT_EQ(through(DType::fp16, 1 + 0x3p-11F), 1 + 0x1p-9);
  EXPECT_EQ(through(DType::fp16, 65519.0F), 65504.0);
  EXPECT_TRUE(std::isinf(through(DType::fp16, 65520.0F)));
  EXPECT_EQ(through(DType::fp16, 0x1p-24F), 0x1p-24);  // the least subnormal
  EXPECT_EQ(through(DType::fp16, 0x1p-25F), 0.0);      // half of it: to even
  EXPECT_EQ(through(DType::fp16, -0x1.8p-24F), -0x1p-23);
  EXPECT_TRUE(std::isnan(through(DType::bf16, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(through(DType::fp16, std::numeric_limits<float>::quiet_NaN())));
}

TEST_F(Regions, RefuseToReachOutside) {
  const Tensor4 t(DType::fp32, 1, 4, {0, 2}, 3);
  Tensor4 to = t;
  EXPECT_THROW(
      memory().copy_region(t.view(), {{0, 5}, {0, 2}}, to.view(), {{0, 5}, {0, 2}}, WriteMode::overwrite),
      InternalError);
  EXPECT_THROW(
      memory().copy_region(t.view(), {{0, 2}, {0, 2}}, to.view(), {{0, 3}, {0, 2}}, WriteMode::overwrite),
      InternalError);
  EXPECT_THROW(memory().pack_region(t.view(), {{0, 2}, {1, 3}}, DType::fp32, nullptr), InternalError);
}

TEST_F(Regions, FillsHeadsAndWholeTensors) {
  for (const DType type : types)
    for (const Order order : orders) {
      const Tensor4 t(type, 2, 9, {2, 5}, 6, order);
      const std::vector<double> by_head{0, 1, 0.5, -3, 1e30};
      memory().fill_heads(t.view(), by_head.data());
      for (i64 h = 2; h < 5; ++h)
        EXPECT_EQ(element(t.view(), 1, 8, h, 5), rounded(type, by_head[static_cast<std::size_t>(h)]));
      memory().fill(t.view(), 0.1);
      for (const double x : t.values()) EXPECT_EQ(x, rounded(type, 0.1));
    }
}

}  // namespace
}  // namespace usp::test
