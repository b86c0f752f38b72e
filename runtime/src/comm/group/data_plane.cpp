// SPDX-License-Identifier: Apache-2.0
#include "data_plane.hpp"

#include <string>

namespace usp::comm {

void DataPlaneCommunicator::check_peer(const Message& message) const {
  if (message.peer != rank() && message.peer >= 0 && message.peer < size()) return;
  throw UsageError("rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                   " cannot exchange a message with rank " + std::to_string(message.peer));
}

}  // namespace usp::comm
