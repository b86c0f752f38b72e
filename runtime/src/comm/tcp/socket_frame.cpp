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
    case Frame::Kind::notice:
    case Frame::Kind::bye:
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
  const bool notice = arrival.frame.kind == Frame::Kind::notice;
  arrival.length = sizeof(Frame) + (notice ? sizeof(Notice) : 0);
  if (bytes.size() < arrival.length) return arrival;
  arrival.kind = Arrival::Kind::frame;
  if (notice) std::memcpy(&arrival.notice.emplace(), bytes.data() + sizeof(Frame), sizeof(Notice));
  return arrival;
}

}  // namespace usp::comm
