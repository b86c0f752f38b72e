// SPDX-License-Identifier: Apache-2.0
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

TEST(Text, CountsInflectTheirNoun) {
  EXPECT_EQ(counted(1, "host"), "1 host");
  EXPECT_EQ(counted(0, "host"), "0 hosts");
  EXPECT_EQ(counted(2U, "microbatch"), "2 microbatches");
  EXPECT_EQ(counted(2, "head chunk"), "2 head chunks");
  EXPECT_EQ(counted(3, "copy"), "3 copies");
  EXPECT_EQ(counted(3, "key"), "3 keys");
  EXPECT_EQ(counted(1, "mesh"), "1 mesh");
  EXPECT_EQ(plural(2, "mesh"), "meshes");
}

TEST(Units, RatesFollowTheirMagnitude) {
  EXPECT_EQ(format_flop_rate(494.2e12), "494 TFLOP/s");
  EXPECT_EQ(format_flop_rate(1.234e15), "1.23 PFLOP/s");
  EXPECT_EQ(format_flop_rate(999.6e12), "1 PFLOP/s");
  EXPECT_EQ(format_flop_rate(50e9), "50 GFLOP/s");
  EXPECT_EQ(format_flop_rate(2.5e6), "2.5 MFLOP/s");
  EXPECT_EQ(format_flop_rate(0), "0 FLOP/s");
  EXPECT_EQ(format_byte_rate(64e9), "64 GB/s");
  EXPECT_EQ(format_byte_rate(50e9, 1), "50.0 GB/s");
  EXPECT_EQ(format_byte_rate(0.42e9), "420 MB/s");
}

}  // namespace
}  // namespace usp
