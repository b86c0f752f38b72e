// SPDX-License-Identifier: Apache-2.0
// What rank 0 collects from others is checked before memory is taken for it.
#include "run/gather.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace usp {
namespace {

std::vector<std::byte> bytes_of_numbers(const std::vector<i64>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(i64));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// Rank 1 sends `bytes` where rank 0 expects a report of the type of `mine`.
template <class Report>
void collect(const Report& mine, const std::vector<std::byte>& bytes) {
  comm::run_threads(2, {}, [&](comm::Communicator& communicator) {
    if (communicator.rank() == 0)
      (void)gather(communicator, mine);
    else
      (void)gather(communicator, bytes);
  });
}

TEST(Gather, CountsBeyondTheReportAreRefused) {
  for (const i64 count : {i64{-1}, i64{2}, i64{1} << 40, i64{1} << 62})
    EXPECT_THROW(collect(Part{}, bytes_of_numbers({count, 0})), EnvironmentError) << count;
  const i64 ticks_and_ranks = (i64{1} << 31) - 1;
  EXPECT_THROW(collect(RankResult{}, bytes_of_numbers({ticks_and_ranks | (ticks_and_ranks << 32), 0})),
               EnvironmentError);
  EXPECT_THROW(collect(RankResult{}, {}), EnvironmentError);
}

TEST(Gather, RowsAreThoseThatFollow) {
  // one token, bf16, then batch, heads and width that no row fills
  std::vector<std::byte> bytes = bytes_of_numbers({1, 0});
  bytes.push_back(std::byte{0});
  const auto shape = bytes_of_numbers({i64{1} << 40, 0, i64{1} << 20, i64{1} << 20});
  bytes.insert(bytes.end(), shape.begin(), shape.end());
  EXPECT_THROW(collect(Part{}, bytes), EnvironmentError);
}

TEST(Gather, ReportsArriveAsTheyWere) {
  comm::run_threads(2, {}, [](comm::Communicator& communicator) {
    const Part mine{{communicator.rank(), 5}, HostTensor(DType::fp32, 1, 2, {0, 3}, 4)};
    const std::vector<Part> all = gather(communicator, mine);
    if (communicator.rank() != 0) return;
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[1].tokens, (std::vector<i64>{1, 5}));
    EXPECT_EQ(all[1].rows.bytes().size(), mine.rows.bytes().size());
  });
}

}  // namespace
}  // namespace usp
