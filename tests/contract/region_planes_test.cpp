// SPDX-License-Identifier: Apache-2.0
#include "comm/regions/region_planes.hpp"

#include "comm/regions/region_walk.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace usp::comm {
namespace {

/// A region inside a memory of its own, with gaps, of so many bytes.
struct Drawn {
  std::vector<std::byte> memory;
  std::vector<StridedBytes> regions;
};

i64 divisor(i64 n, std::mt19937_64& random) {
  std::vector<i64> all;
  for (i64 d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all[random() % all.size()];
}

Drawn draw(const std::vector<i64>& sizes, std::mt19937_64& random) {
  Drawn drawn;
  std::vector<std::size_t> offsets;
  std::size_t end = 0;
  for (i64 bytes : sizes) {
    StridedBytes region;
    region.run_bytes = divisor(bytes, random);
    i64 left = bytes / region.run_bytes;
    for (i64& count : region.count) count = divisor(left, random), left /= count;
    region.count[0] *= left;
    i64 extent = region.run_bytes;
    for (int d = 2; d >= 0; --d) {
      region.stride[d] = extent + static_cast<i64>(random() % 3 == 0 ? random() % 5 : 0);
      extent = region.stride[d] * region.count[d];
    }
    offsets.push_back(end);
    end += static_cast<std::size_t>(extent);
    drawn.regions.push_back(region);
  }
  drawn.memory.resize(end);
  for (std::size_t i = 0; i < sizes.size(); ++i) drawn.regions[i].data = drawn.memory.data() + offsets[i];
  return drawn;
}

TEST(RegionPlanes, MoveWhatRunsMove) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<i64> from_sizes(1 + random() % 3);
    i64 bytes = 0;
    for (i64& n : from_sizes) n = 1 + static_cast<i64>(random() % 200), bytes += n;
    std::vector<i64> to_sizes{bytes};
    if (bytes > 1 && random() % 2 == 0) {
      const i64 first = 1 + static_cast<i64>(random() % static_cast<std::uint64_t>(bytes - 1));
      to_sizes = {first, bytes - first};
    }
    Drawn from = draw(from_sizes, random), to = draw(to_sizes, random);
    for (std::byte& b : from.memory) b = static_cast<std::byte>(random());
    Message source, target;
    source.regions = from.regions.data(), source.region_count = static_cast<i64>(from.regions.size());
    target.regions = to.regions.data(), target.region_count = static_cast<i64>(to.regions.size());
    ASSERT_EQ(PayloadCopy(source, target).advance(bytes), bytes);
    const std::vector<std::byte> expected = to.memory;
    std::fill(to.memory.begin(), to.memory.end(), std::byte{0});
    const i64 moved = for_each_plane(source, target, [](const device::Copy2d& p) {
      for (i64 row = 0; row < p.height; ++row)
        std::memcpy(p.to + row * p.to_pitch, p.from + row * p.from_pitch, static_cast<std::size_t>(p.width));
    });
    ASSERT_EQ(moved, bytes);
    ASSERT_EQ(to.memory, expected) << "trial " << trial;
  }
}

/// A Ulysses exchange: some heads of many rows against a packed region is one 2D copy, either way round.
TEST(RegionPlanes, HeadsOfManyRowsAreOnePlane) {
  std::vector<std::byte> home(64 * 16 * 256), row(64 * 4 * 256);
  StridedBytes heads{
      .data = home.data() + 4 * 256, .count = {64, 1, 1}, .stride = {16 * 256, 0, 0}, .run_bytes = 4 * 256};
  StridedBytes packed{.data = row.data(), .run_bytes = 64 * 4 * 256};
  Message a, b;
  a.regions = &heads, a.region_count = 1, b.regions = &packed, b.region_count = 1;
  int planes = 0;
  const auto count = [&](const device::Copy2d& p) {
    ++planes;
    EXPECT_EQ(p.height, 64);
    EXPECT_EQ(p.width, 4 * 256);
  };
  for_each_plane(a, b, count);
  for_each_plane(b, a, count);
  EXPECT_EQ(planes, 2);
}

}  // namespace
}  // namespace usp::comm
