// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "job_key.hpp"
#include "socket.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// What ranks say to each other until they are connected, as plain bytes in the order of the machine: unlike
/// machines do not understand each other's magic number. Functions that parse take any bytes.
///
///     guest -> host   Hello     its rank, a nonce
///     host -> guest   Reply     the host's nonce, or why the guest is not let in
///     guest -> host   Proof     that it knows the secret
///     host -> guest   Reply     the host's proof, or why the guest is not let in
///     rank 0 -> all   Reply     the session, or why the job does not start; then an Entry per rank
namespace usp::comm {

constexpr std::uint64_t handshake_magic = 0x7573702D72616E6BU;
constexpr std::uint32_t handshake_version = 2;
constexpr std::int32_t max_ranks = 1 << 20;
constexpr int max_port = 65535;

struct HandshakeRequest {
  std::uint64_t magic = handshake_magic;
  std::uint32_t version = handshake_version;
  std::int32_t size = 0;
  std::int32_t rank = 0;
  std::int32_t port = 0;  ///< where the rank listens; 0: nowhere
  std::uint64_t digest = 0;
  std::uint64_t secured = 0;  ///< 1: it will prove that it knows the job's secret, and asks the host to
  Nonce nonce{};
};
static_assert(sizeof(HandshakeRequest) == 72);

/// The text has the same offset in every version, so that each can report the other's.
struct HandshakeReply {
  std::uint64_t magic = handshake_magic;
  std::array<char, 464> rejection{};  ///< empty: welcome so far
  std::uint64_t secured = 0;
  std::array<std::byte, 32> value{};  ///< nonce, proof or session
};
static_assert(sizeof(HandshakeReply) == 512);

/// Address at which a rank listens, as rank 0 sends it.
struct RankEndpoint {
  Address address;  ///< no length: at the host of rank 0, as the reader reaches it
  std::int32_t port = 0;
};

/// What the first bytes of a caller are, however few.
enum class RequestState : std::uint8_t { incomplete, foreign, other_version, complete };
[[nodiscard]] RequestState request_state_of(std::span<const std::byte> bytes);
/// Of a whole greeting. None when a number is out of range: no rank says that.
[[nodiscard]] std::optional<HandshakeRequest> parse_request(std::span<const std::byte> bytes);
/// None when it is no reply of this program. The refusal ends.
[[nodiscard]] std::optional<HandshakeReply> parse_reply(std::span<const std::byte> bytes);
/// Of `size` ranks. None when an entry has no address or port.
[[nodiscard]] std::optional<std::vector<RankEndpoint>> parse_table(std::span<const std::byte> bytes,
                                                                   int size);

[[nodiscard]] HandshakeReply rejection_reply(const std::string& why);
[[nodiscard]] inline HandshakeReply acceptance_reply(const JobKey& key,
                                                     const std::array<std::byte, 32>& value) {
  return {.secured = key.secured() ? 1U : 0U, .value = value};
}
[[nodiscard]] inline HandshakeContext context_of(const HandshakeRequest& request, int acceptor,
                                                 const Nonce& acceptor_nonce) {
  return {request.size, request.rank, acceptor, request.port, request.digest, request.nonce, acceptor_nonce};
}

}  // namespace usp::comm
