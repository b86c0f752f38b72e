// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace usp::contract {

/// Two ranks that both send first and receive then. A run of at most 1 MiB that is given again and again
/// makes up `bytes`.
inline void swap_large_messages(comm::Communicator& communicator, i64 bytes) {
  const int peer = 1 - communicator.rank();
  const i64 run_bytes = std::min(bytes, i64{1} << 20);
  std::vector<std::byte> memory[2];
  comm::Ticket tickets[2];
  comm::StridedBytes regions[2];
  for (const int way : {0, 1}) {
    memory[way].assign(static_cast<std::size_t>(run_bytes),
                       way == 0 ? static_cast<std::byte>(peer + 1) : std::byte{0});
    regions[way].data = memory[way].data();
    regions[way].run_bytes = run_bytes;
    regions[way].count[0] = bytes / run_bytes;
    regions[way].stride[0] = 0;
    const comm::Message message{.peer = peer,
                                .send = way == 0,
                                .tag = 1,
                                .tick = 0,
                                .operation = "kv_exchange",
                                .regions = &regions[way],
                                .region_count = 1};
    communicator.post(&message, 1, &tickets[way]);
  }
  EXPECT_EQ(communicator.wait(tickets[0]), bytes);
  EXPECT_EQ(communicator.wait(tickets[1]), bytes);
  EXPECT_EQ(memory[1][0], static_cast<std::byte>(communicator.rank() + 1));
}

}  // namespace usp::contract
