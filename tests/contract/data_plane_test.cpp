// SPDX-License-Identifier: Apache-2.0
#include "data_plane_contract.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/routed_data_plane.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace usp::test {
namespace {

class DataPlanes : public testing::TestWithParam<int> {};

TEST_P(DataPlanes, OfMessagesKeepTheContract) {
  EXPECT_NO_THROW(comm::run_threads(GetParam(), {}, [](comm::Communicator& control) {
    const auto messages = comm::make_message_data_plane(control);
    contract::PayloadMemory host;
    contract::check_data_plane(*messages, host);
  }));
}

/// Two ways to every peer, taken in turn.
TEST_P(DataPlanes, KeepTheContractWhenRouted) {
  const int ranks = GetParam();
  if (ranks < 2) return;
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_NO_THROW(comm::run_threads(ranks, {}, [&](comm::Communicator& control) {
    const std::vector<int> reversed(all.rbegin(), all.rend());
    const auto forth = control.group(all), back = control.group(reversed);
    const auto forth_plane = comm::make_message_data_plane(*forth),
               back_plane = comm::make_message_data_plane(*back);
    std::vector<comm::Route> routes;
    for (const int peer : all)
      routes.push_back((peer + control.rank()) % 2 == 0 ? comm::Route{forth_plane.get(), peer}
                                                        : comm::Route{back_plane.get(), ranks - 1 - peer});
    const auto routed = comm::make_routed_data_plane(control, {forth_plane.get(), back_plane.get()}, routes);
    contract::PayloadMemory host;
    contract::check_data_plane(*routed, host);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataPlanes, testing::Values(1, 2, 3, 5));

TEST(RoutedDataPlane, RefusesAPeerItCannotReach) {
  EXPECT_THROW(comm::run_threads(2, {},
                                 [](comm::Communicator& control) {
                                   const auto routed =
                                       comm::make_routed_data_plane(control, {}, std::vector<comm::Route>(2));
                                   comm::ChannelEnd end;
                                   end.peer = 1 - control.rank(), end.send = true;
                                   (void)routed->connect({end});
                                 }),
               UsageError);
}

}  // namespace
}  // namespace usp::test
