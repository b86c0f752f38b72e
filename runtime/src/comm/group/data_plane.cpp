// SPDX-License-Identifier: Apache-2.0
#include "data_plane.hpp"

#include <fmt/format.h>

#include <string>

namespace usp::comm {

void DataPlaneCommunicator::check_peer(const Message& message) const {
  if (message.peer != rank() && message.peer >= 0 && message.peer < size()) return;
  throw UsageError(
      fmt::format("rank {} of {} cannot exchange a message with rank {}", rank(), size(), message.peer));
}

}  // namespace usp::comm
