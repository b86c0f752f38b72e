// SPDX-License-Identifier: Apache-2.0
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace usp::topology {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

bool hides_switches(LinkKind kind) {
  return kind == LinkKind::phb || kind == LinkKind::node || kind == LinkKind::sys;
}

bool same_everywhere(const std::vector<std::vector<LinkKind>>& distance) {
  for (const auto& row : distance)
    for (LinkKind kind : row)
      if (kind != distance[0][0]) return false;
  return true;
}

/// Bytes of the UTF-8 character at the front; 0 when it is none.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool outside = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

}  // namespace

void group_nvlink_domains(Cluster& cluster) {
  std::vector<std::vector<int>> peers(cluster.devices.size());
  for (const Link& link : cluster.links) {
    if (link.kind != LinkKind::nvlink && link.kind != LinkKind::xgmi) continue;
    peers[index(link.a)].push_back(link.b);
    peers[index(link.b)].push_back(link.a);
  }
  for (Device& start : cluster.devices) {
    if (start.nvlink_domain >= 0 || peers[index(start.id)].empty()) continue;
    const int domain = static_cast<int>(cluster.domains.size());
    std::vector<int> members{start.id};
    start.nvlink_domain = domain;
    for (std::size_t next = 0; next < members.size(); ++next)
      for (int peer : peers[index(members[next])]) {
        Device& device = cluster.devices[index(peer)];
        if (device.nvlink_domain >= 0) continue;
        device.nvlink_domain = domain;
        members.push_back(peer);
      }
    std::sort(members.begin(), members.end());
    cluster.domains.push_back({members, false, {}});
  }
}

void assign_nearest_nics(Cluster& cluster, const std::vector<std::vector<LinkKind>>& distance) {
  if (cluster.nics.empty() || cluster.devices.empty()) return;
  if (hides_switches(distance[0][0]) && same_everywhere(distance)) {
    cluster.notes.emplace_back(
        "every NIC is at the same distance from every device, as behind a hypervisor: the source "
        "shows no affinity");
    return;
  }
  std::vector<std::string> undecided;
  for (Device& device : cluster.devices) {
    const auto& row = distance[index(device.id)];
    const LinkKind nearest = *std::min_element(row.begin(), row.end());
    const bool all_alike = *std::max_element(row.begin(), row.end()) == nearest && row.size() > 1;
    if (all_alike && (nearest == LinkKind::phb || nearest == LinkKind::sys)) {
      undecided.push_back(std::to_string(device.id));
      continue;
    }
    for (std::size_t nic = 0; nic < row.size(); ++nic)
      if (row[nic] == nearest) device.nics.push_back(static_cast<int>(nic));
  }
  if (!undecided.empty())
    cluster.notes.push_back(
        fmt::format("no NIC is nearer than another to device {}: the source shows no affinity there",
                    fmt::join(undecided, ", ")));
}

void check_text_size(std::string_view text, const std::string& file) {
  if (text.size() > (std::size_t{16} << 20))
    throw InvalidInput({file, 0, ""}, "larger than 16 MiB; this is not such a file");
}

std::optional<int> small_number(std::string_view digits, std::size_t max_digits) {
  if (digits.empty() || digits.size() > max_digits) return std::nullopt;
  int value = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

void note_ignored(std::vector<std::string>& notes, const std::vector<std::string>& ignored) {
  constexpr std::size_t shown = 16;
  for (std::size_t i = 0; i < std::min(shown, ignored.size()); ++i) notes.push_back(ignored[i]);
  if (ignored.size() > shown)
    notes.push_back(fmt::format("{} more lines or parts of lines were ignored", ignored.size() - shown));
}

std::string excerpt(std::string_view text, std::size_t limit) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size() && result.size() < limit) {
    const std::size_t length = utf8_length(text.substr(at));
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool printable = length > 1 || (length == 1 && byte >= 0x20 && byte != 0x7f);
    result += printable ? std::string(text.substr(at, length)) : "?";
    at += std::max<std::size_t>(length, 1);
  }
  return at < text.size() ? result + "..." : result;
}

}  // namespace usp::topology
