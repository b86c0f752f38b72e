// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/kernel_fit.hpp"

#include "usp/base/error.hpp"

#include <gtest/gtest.h>

#include <random>

namespace usp {
namespace {

using Mask = KernelShape::Mask;

/// What the samples are computed from: a card of `sm_count` multiprocessors, or one rank of a host.
KernelData truth(int sm_count, int tile_rows) {
  KernelData data;
  data.family = "known";
  data.sm_count = sm_count;
  data.tile_rows = tile_rows;
  data.element_bytes = 4;
  data.min_tokens = 64;
  data.max_tokens = 4096;
  data.memory_bytes_s = 1e10;
  for (const int d : {64, 128}) {
    KernelFit fit;
    fit.head_dim = fit.head_dim_v = d;
    fit.launch_s = 2e-5;
    fit.peak_tflops = 0.03 + d * 1e-4;
    fit.extra_keys = 24;
    fit.full_extra_keys = 0.25;
    fit.serial = sm_count > 1 ? 0.4 : 0;
    fit.kv_gb_s = 5;
    fit.rows = 1;
    data.fits.push_back(fit);
    BackwardFit back{
        .head_dim = d, .head_dim_v = d, .rate_ratio = 1.2, .extra_keys = -8, .launch_s = 5e-5, .rows = 1};
    if (sm_count > 1) back.serial = 0.9;  // its tiles are not the forward's
    data.backward.push_back(back);
  }
  return data;
}

std::vector<KernelSample> samples_of(const KernelData& data, double noise) {
  const AttentionCostModel model(data);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> off(1 - noise, 1 + noise);
  std::vector<KernelSample> all;
  for (const int d : {64, 128})
    for (const double heads : {1.0, 2.0, 4.0})
      for (const double rows : {128.0, 256.0, 512.0, 1024.0})
        for (const double keys : {256.0, 1024.0})
          for (const bool full : {false, true})
            for (const bool backward : {false, true}) {
              KernelShape s{heads, 1, d, d, rows, 0, full ? keys : rows, full ? Mask::full : Mask::causal, 4};
              s.mean_keys = full ? keys : (rows + 1) / 2;
              all.push_back({s, backward, 0});
              all.back().seconds = off(random) * (backward ? model.backward(s) : model.forward(s)).seconds;
            }
  return all;
}

TEST(KernelFit, KnownCoefficientsComeBack) {
  for (const auto& [sm_count, tile] : {std::pair(1, 1), std::pair(132, 128)}) {
    const KernelData known = truth(sm_count, tile);
    const KernelData found = fit_kernels(known, samples_of(known, 0));
    ASSERT_EQ(found.fits.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const KernelFit &a = known.fits[i], &b = found.fits[i];
      EXPECT_EQ(b.head_dim, a.head_dim);
      EXPECT_NEAR(b.launch_s / a.launch_s, 1, 1e-4);
      EXPECT_NEAR(b.peak_tflops / a.peak_tflops, 1, 1e-5);
      EXPECT_NEAR(b.extra_keys / a.extra_keys, 1, 1e-4);
      EXPECT_NEAR(*b.full_extra_keys, *a.full_extra_keys, 1e-4);
      EXPECT_NEAR(b.serial, a.serial, 1e-4);
      EXPECT_NEAR(*b.kv_gb_s / *a.kv_gb_s, 1, 1e-3);
      EXPECT_LT(b.p90, 1e-5);
      EXPECT_NEAR(found.backward[i].rate_ratio, 1.2, 1e-4);
      EXPECT_NEAR(found.backward[i].extra_keys, -8, 1e-2);
      EXPECT_NEAR(*found.backward[i].launch_s / 5e-5, 1, 1e-3);
      EXPECT_NEAR(found.backward[i].serial.value_or(0), known.backward[i].serial.value_or(0), 1e-3);
      EXPECT_GT(found.backward[i].rows, 0);
    }
    EXPECT_EQ(found.min_tokens, 128);
    EXPECT_EQ(found.max_tokens, 1024);
  }
}

/// What a machine does to short calls says nothing of long ones.
TEST(KernelFit, TheBandOfLongCallsIsTheirOwn) {
  const KernelData known = truth(1, 1);
  std::vector<KernelSample> samples = samples_of(known, 0);
  const AttentionCostModel model(known);
  int odd = 0;
  for (KernelSample& s : samples)
    if (!is_long_call(model.scores_seconds(s.shape, s.backward), s.seconds) && ++odd % 3 == 0)
      s.seconds *= 1.5;
  ASSERT_GT(odd, 6);
  const KernelData found = fit_kernels(known, samples);
  const KernelShape brief{1, 1, 64, 64, 128, 64.5, 128, Mask::causal, 4};
  const KernelShape lasting{4, 1, 64, 64, 1024, 512.5, 1024, Mask::causal, 4};
  EXPECT_LT(*found.fits[0].long_p90, 0.6 * found.fits[0].p90);
  EXPECT_EQ(AttentionCostModel(found).forward(lasting).band, *found.fits[0].long_p90);
  EXPECT_EQ(AttentionCostModel(found).forward(brief).band, found.fits[0].p90);
}

TEST(KernelFit, ReadsOfKAndVThatShowInNoCallAreLeftOut) {
  KernelData known = truth(132, 128);
  for (KernelFit& fit : known.fits) fit.kv_gb_s.reset();
  for (const KernelFit& fit : fit_kernels(known, samples_of(known, 0)).fits) EXPECT_FALSE(fit.kv_gb_s);
}

TEST(KernelFit, NoiseOfAFewPercentMovesThePeakByLess) {
  const KernelData known = truth(1, 1);
  const KernelData found = fit_kernels(known, samples_of(known, 0.03));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(found.fits[i].peak_tflops / known.fits[i].peak_tflops, 1, 0.03);
    EXPECT_LT(found.fits[i].mape, 0.03);
    EXPECT_GT(found.fits[i].mape, 0.001);
    EXPECT_LT(found.backward[i].mape, 0.03);
  }
}

TEST(KernelFit, NonnegativeLeastSquaresLeavesOutWhatWouldBeNegative) {
  const std::vector<std::vector<double>> a{{1, 1}, {1, 2}, {1, 3}};
  const auto exact = nonnegative_least_squares(a, {3, 5, 7});
  EXPECT_NEAR(exact[0], 1, 1e-9);
  EXPECT_NEAR(exact[1], 2, 1e-9);
  const auto falling = nonnegative_least_squares(a, {3, 2, 1});
  EXPECT_NEAR(falling[0], 2, 1e-9);
  EXPECT_EQ(falling[1], 0);
  EXPECT_THROW(static_cast<void>(nonnegative_least_squares({{1, 2}}, {1})), InvalidInput);
}

TEST(KernelFit, WindowsAreNotFittedButTold) {
  const KernelData known = truth(1, 1);
  std::vector<KernelSample> samples = samples_of(known, 0);
  KernelSample window = samples.front();
  window.shape.mask = Mask::window;
  window.shape.mean_keys = 32;
  window.seconds = 2 * AttentionCostModel(known).forward(window.shape).seconds;
  samples.push_back(window);
  const KernelData found = fit_kernels(known, samples);
  EXPECT_NEAR(*found.fits[0].window_mape, 0.5, 1e-3);
  EXPECT_LT(found.fits[0].mape, 1e-5);
  EXPECT_FALSE(found.fits[1].window_mape.has_value());
}

TEST(KernelFit, TimesThatDoNotGrowGiveARateWithAnErrorThatTells) {
  std::vector<KernelSample> samples = samples_of(truth(1, 1), 0);
  for (KernelSample& s : samples) s.seconds = 1 / (s.shape.query_heads * s.shape.rows * s.shape.mean_keys);
  const KernelData found = fit_kernels(truth(1, 1), samples);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GT(found.fits[i].peak_tflops, 0);
    EXPECT_EQ(found.fits[i].extra_keys, 0);
    EXPECT_GT(found.fits[i].p90, 0.5);
    EXPECT_GT(found.backward[i].p90, 0.5);
  }
  samples.front().seconds = 0;
  EXPECT_THROW(static_cast<void>(fit_kernels(truth(1, 1), samples)), InvalidInput);
  EXPECT_THROW(static_cast<void>(fit_kernels(truth(1, 1), {samples.begin() + 1, samples.begin() + 4})),
               InvalidInput);
}

}  // namespace
}  // namespace usp
