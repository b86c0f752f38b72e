// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/job_failure.hpp"

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// What travels between ranks that are connected, as bytes. Functions that parse take any bytes.
namespace usp::comm {

/// Requests of a peer, and of all peers, that wait for their sends: ranks that follow one schedule stay far
/// below, and no rank's memory grows further.
constexpr i64 max_requests_of_peer = i64{1} << 16;
constexpr i64 max_requests = i64{1} << 20;

/// Header of every frame. Plain bytes: the handshake has checked that both machines agree.
struct Frame {
  enum class Kind : std::uint32_t {
    request = 0x71,   ///< the receive `id` of (context, tag) is posted for `bytes`
    data = 0x72,      ///< the next `bytes` of the payload that request `id` asked for follow
    failure = 0x73,   ///< how the job ended: a FailureFrame follows
    shutdown = 0x74,  ///< the last frame of this sender
  };
  Kind kind = Kind::shutdown;
  std::uint32_t id = 0;
  std::uint64_t context = 0;
  i64 tag = 0;
  i64 bytes = 0;
};

/// Frame header at the start of received bytes.
struct Arrival {
  enum class Kind : std::uint8_t { part, nonsense, frame };
  Kind kind = Kind::part;
  Frame frame;
  std::optional<FailureFrame> failure;  ///< of a frame of that kind
  std::size_t length = 0;               ///< bytes that it takes; the payload of data follows them
};
/// nonsense: no frame begins so. Of requests and data, `bytes` is 1 or more.
[[nodiscard]] Arrival parse_frame(std::span<const std::byte> bytes);

}  // namespace usp::comm
