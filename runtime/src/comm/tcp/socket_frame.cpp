// SPDX-License-Identifier: Apache-2.0
#include "socket_frame.hpp"

#include <cstring>

namespace usp::comm {
namespace {

[[nodiscard]] bool sound(const Frame& frame) {
  switch (frame.kind) {
    case Frame::Kind::request:
    case Frame::Kind::data:
      return frame.bytes > 0;
    case Frame::Kind::failure:
    case Frame::Kind::shutdown:
      return true;
  }
  return false;
}

}  // namespace

Arrival parse_frame(std::span<const std::byte> bytes) {
  Arrival arrival;
  if (bytes.size() < sizeof(Frame)) return arrival;
  std::memcpy(&arrival.frame, bytes.data(), sizeof(Frame));
  if (!sound(arrival.frame)) {
    arrival.kind = Arrival::Kind::nonsense;
    return arrival;
  }
  const bool failed = arrival.frame.kind == Frame::Kind::failure;
  arrival.length = sizeof(Frame) + (failed ? sizeof(FailureFrame) : 0);
  if (bytes.size() < arrival.length) return arrival;
  arrival.kind = Arrival::Kind::frame;
  if (failed) std::memcpy(&arrival.failure.emplace(), bytes.data() + sizeof(Frame), sizeof(FailureFrame));
  return arrival;
}

}  // namespace usp::comm
