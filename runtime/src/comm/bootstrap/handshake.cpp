// SPDX-License-Identifier: Apache-2.0
#include "handshake.hpp"

#include <cstring>
#include <netinet/in.h>

namespace usp::comm {
namespace {

template <class T>
[[nodiscard]] T read(std::span<const std::byte> bytes, std::size_t at = 0) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Nothing, or an address of a family that ranks meet over.
[[nodiscard]] bool sound(const Address& address) {
  if (address.length == 0) return true;
  const sa_family_t family = address.storage.ss_family;
  return (family == AF_INET && address.length == sizeof(sockaddr_in)) ||
         (family == AF_INET6 && address.length == sizeof(sockaddr_in6));
}

}  // namespace

RequestState request_state_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::uint64_t)) return RequestState::incomplete;
  if (read<std::uint64_t>(bytes) != handshake_magic) return RequestState::foreign;
  if (bytes.size() < offsetof(HandshakeRequest, size)) return RequestState::incomplete;
  if (read<std::uint32_t>(bytes, offsetof(HandshakeRequest, version)) != handshake_version)
    return RequestState::other_version;
  return bytes.size() < sizeof(HandshakeRequest) ? RequestState::incomplete : RequestState::complete;
}

std::optional<HandshakeRequest> parse_request(std::span<const std::byte> bytes) {
  if (request_state_of(bytes) != RequestState::complete) return std::nullopt;
  const auto request = read<HandshakeRequest>(bytes);
  const bool sense = request.size >= 1 && request.size <= max_ranks && request.rank >= 0 &&
                     request.rank < request.size && request.port >= 0 && request.port <= max_port &&
                     request.secured <= 1;
  return sense ? std::optional(request) : std::nullopt;
}

std::optional<HandshakeReply> parse_reply(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(HandshakeReply)) return std::nullopt;
  auto reply = read<HandshakeReply>(bytes);
  if (reply.magic != handshake_magic || reply.secured > 1) return std::nullopt;
  reply.rejection.back() = '\0';
  return reply;
}

std::optional<std::vector<RankEndpoint>> parse_table(std::span<const std::byte> bytes, int size) {
  if (size < 1 || bytes.size() / sizeof(RankEndpoint) < static_cast<std::size_t>(size)) return std::nullopt;
  std::vector<RankEndpoint> table;
  for (int rank = 0; rank < size; ++rank) {
    const auto entry = read<RankEndpoint>(bytes, static_cast<std::size_t>(rank) * sizeof(RankEndpoint));
    const bool listens = rank == 0 || (entry.port > 0 && entry.port <= max_port);  // rank 0 is known
    if (!sound(entry.address) || !listens) return std::nullopt;
    table.push_back(entry);
  }
  return table;
}

HandshakeReply rejection_reply(const std::string& why) {
  HandshakeReply reply;
  why.copy(reply.rejection.data(), reply.rejection.size() - 1);
  return reply;
}

}  // namespace usp::comm
