// SPDX-License-Identifier: Apache-2.0
#include "peer_access.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

namespace usp::topology {
namespace {

constexpr std::size_t max_devices = 1024;

/// Whether a cell says that copies go; none: no cell. States as in nvidia-smi's own legend.
std::optional<bool> open_by(const std::string& cell) {
  if (cell == "X" || cell == "OK") return true;
  static constexpr std::array<std::string_view, 6> shut{{"CNS", "GNS", "TNS", "NS", "DR", "U"}};
  if (std::find(shut.begin(), shut.end(), cell) != shut.end()) return false;
  return std::nullopt;
}

std::optional<int> device_of(const std::string& label) {
  if (label.rfind("GPU", 0) != 0) return std::nullopt;
  return small_number(std::string_view(label).substr(3), 4);
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  PeerAccess read(const std::string& text) {
    CleanText clean = clean_text(text, file_);
    access_.notes = std::move(clean.notes);
    for_each_line(clean.text, [&](long number, std::string_view line) {
      number_ = number;
      read_line(split_blanks(line));
    });
    note_ignored(access_.notes, ignored_);
    if (access_.devices.empty())
      throw InvalidInput({file_, 0, ""},
                         "no line names GPU0, GPU1, ... as columns: not the output of "
                         "nvidia-smi topo -p2p r");
    for (std::size_t d = 0; d < access_.devices.size(); ++d)
      if (access_.open[d].empty())
        throw InvalidInput({file_, 0, fmt::format("GPU{}", access_.devices[d])},
                           "this device has a column and no row; give the whole matrix");
    return std::move(access_);
  }

 private:
  [[noreturn]] void fail(const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, number_, excerpt(token)}, problem);
  }

  void read_line(const std::vector<std::string>& tokens) {
    if (tokens.empty()) return;
    const bool labels = std::all_of(tokens.begin(), tokens.end(),
                                    [](const std::string& t) { return device_of(t).has_value(); });
    const std::optional<int> device = device_of(tokens.front());
    if (labels && (tokens.size() > 1 || access_.devices.empty())) return read_header(tokens);
    if (device) return read_row(*device, tokens);
    if (tokens.back() != "Legend:" && (tokens.size() < 2 || tokens[1] != "="))
      ignored_.push_back(
          fmt::format("line {} ignored: '{}'", number_, excerpt(fmt::format("{}", fmt::join(tokens, " ")))));
  }

  void read_header(const std::vector<std::string>& labels) {
    if (!access_.devices.empty())
      fail(labels.front(), "a second matrix begins here; give one host at a time");
    if (labels.size() > max_devices) fail(labels.front(), "more than 1024 columns; this is no single host");
    std::set<int> seen;
    for (const std::string& label : labels) {
      access_.devices.push_back(*device_of(label));
      if (!seen.insert(access_.devices.back()).second) fail(label, "two columns have this label");
    }
    access_.open.resize(access_.devices.size());
  }

  void read_row(int device, const std::vector<std::string>& tokens) {
    const auto at = std::find(access_.devices.begin(), access_.devices.end(), device);
    if (at == access_.devices.end()) fail(tokens.front(), "this row has no column before it");
    std::vector<bool>& row = access_.open[static_cast<std::size_t>(at - access_.devices.begin())];
    if (!row.empty()) fail(tokens.front(), "a second row of this label");
    if (tokens.size() != access_.devices.size() + 1)
      fail(tokens.front(), fmt::format("the row has {}, the header {}", counted(tokens.size() - 1, "cell"),
                                       access_.devices.size()));
    for (std::size_t c = 1; c < tokens.size(); ++c) {
      const std::optional<bool> open = open_by(tokens[c]);
      if (!open) fail(tokens[c], "no state of nvidia-smi topo -p2p (X, OK, CNS, GNS, TNS, NS, DR, U)");
      if ((tokens[c] == "X") != (access_.devices[c - 1] == device))
        fail(tokens[c], "X belongs on the diagonal, and there alone");
      row.push_back(*open);
    }
  }

  std::string file_;
  long number_ = 0;
  PeerAccess access_;
  std::vector<std::string> ignored_;
};

/// Pairs of devices of one host that NVLink does not join.
std::vector<std::pair<const Device*, const Device*>> pcie_pairs(const Cluster& cluster) {
  std::set<std::pair<int, int>> linked;
  for (const Link& link : cluster.links)
    if (link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi) linked.emplace(link.a, link.b);
  std::vector<std::pair<const Device*, const Device*>> pairs;
  for (const Device& a : cluster.devices)
    for (const Device& b : cluster.devices) {
      if (b.id <= a.id || b.node != a.node || linked.count({a.id, b.id}) != 0) continue;
      const bool switched = a.nvlink_domain >= 0 && a.nvlink_domain == b.nvlink_domain &&
                            cluster.domains[static_cast<std::size_t>(a.nvlink_domain)].switched;
      if (!switched) pairs.emplace_back(&a, &b);
    }
  return pairs;
}

void note_no_pairs(Cluster& cluster, const std::string& source) {
  const bool joined = cluster.devices.size() > cluster.nodes.size();
  cluster.notes.push_back(fmt::format("{} changes nothing: {}", source,
                                      joined ? "NVLink or xGMI joins all pairs of a host"
                                             : "no host has two devices that would copy over PCIe"));
}

/// All pairs, and those that copy both ways.
struct PairCount {
  std::size_t all = 0, open = 0;
};

PairCount count_pairs(const Cluster& cluster, const PeerAccess& access, const std::string& file) {
  const auto column = [&](const Device& device) {
    const auto at = std::find(access.devices.begin(), access.devices.end(), device.local);
    if (at == access.devices.end())
      throw InvalidInput({file, 0, fmt::format("GPU{}", device.local)},
                         "the host has this device and the matrix has no row of it");
    return static_cast<std::size_t>(at - access.devices.begin());
  };
  for (const Device& device : cluster.devices) static_cast<void>(column(device));
  PairCount count;
  for (const auto& [a, b] : pcie_pairs(cluster)) {
    const std::size_t row = column(*a), other = column(*b);
    ++count.all;
    count.open += access.open[row][other] && access.open[other][row] ? 1U : 0U;
  }
  return count;
}

/// A matrix of more devices is another host's.
void refuse_strangers(const Cluster& cluster, const PeerAccess& access, const std::string& file) {
  for (const int device : access.devices)
    if (std::none_of(cluster.devices.begin(), cluster.devices.end(),
                     [&](const Device& own) { return own.local == device; }))
      throw InvalidInput({file, 0, fmt::format("GPU{}", device)},
                         "the matrix has this device and no host has it: give the matrix of these hosts, or "
                         "name the devices of them that are used with --devices");
}

}  // namespace

PeerAccess read_peer_access(const std::string& text, const std::string& file) {
  return Reader(file).read(text);
}

void apply_peer_access(Cluster& cluster, const std::string& access, bool selected) {
  if (access != "yes" && access != "no")
    return apply_peer_access(cluster, read_peer_access(read_file(access), access), access, selected);
  if (pcie_pairs(cluster).empty()) return note_no_pairs(cluster, "--p2p " + access);
  for (DeviceSpec& spec : cluster.specs) spec.pcie_p2p = access == "yes";
}

void apply_peer_access(Cluster& cluster, const PeerAccess& matrix, const std::string& file, bool selected) {
  for (const std::string& note : matrix.notes) cluster.notes.push_back(fmt::format("{}: {}", file, note));
  if (!selected) refuse_strangers(cluster, matrix, file);
  const PairCount pairs = count_pairs(cluster, matrix, file);
  if (pairs.all == 0) return note_no_pairs(cluster, file);
  for (DeviceSpec& spec : cluster.specs) spec.pcie_p2p = pairs.open == pairs.all;
  if (pairs.open != 0 && pairs.open != pairs.all)
    cluster.notes.push_back(fmt::format(
        "{}: {} of {} pairs over PCIe copy peer to peer; prices take all to go through host memory", file,
        pairs.open, pairs.all));
}

}  // namespace usp::topology
