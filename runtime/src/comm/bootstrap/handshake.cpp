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

Greeting greeting_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::uint64_t)) return Greeting::part;
  if (read<std::uint64_t>(bytes) != hello_magic) return Greeting::stranger;
  if (bytes.size() < offsetof(Hello, size)) return Greeting::part;
  if (read<std::uint32_t>(bytes, offsetof(Hello, version)) != hello_version) return Greeting::other_version;
  return bytes.size() < sizeof(Hello) ? Greeting::part : Greeting::whole;
}

std::optional<Hello> parse_hello(std::span<const std::byte> bytes) {
  if (greeting_of(bytes) != Greeting::whole) return std::nullopt;
  const auto hello = read<Hello>(bytes);
  const bool sense = hello.size >= 1 && hello.size <= max_ranks && hello.rank >= 0 &&
                     hello.rank < hello.size && hello.port >= 0 && hello.port <= max_port &&
                     hello.secured <= 1;
  return sense ? std::optional(hello) : std::nullopt;
}

std::optional<Reply> parse_reply(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Reply)) return std::nullopt;
  auto reply = read<Reply>(bytes);
  if (reply.magic != hello_magic || reply.secured > 1) return std::nullopt;
  reply.refusal.back() = '\0';
  return reply;
}

std::optional<std::vector<Entry>> parse_table(std::span<const std::byte> bytes, int size) {
  if (size < 1 || bytes.size() / sizeof(Entry) < static_cast<std::size_t>(size)) return std::nullopt;
  std::vector<Entry> table;
  for (int rank = 0; rank < size; ++rank) {
    const auto entry = read<Entry>(bytes, static_cast<std::size_t>(rank) * sizeof(Entry));
    const bool listens = rank == 0 || (entry.port > 0 && entry.port <= max_port);  // rank 0 is known
    if (!sound(entry.address) || !listens) return std::nullopt;
    table.push_back(entry);
  }
  return table;
}

Reply refusal_reply(const std::string& why) {
  Reply reply;
  why.copy(reply.refusal.data(), reply.refusal.size() - 1);
  return reply;
}

}  // namespace usp::comm
