// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/slurm.hpp"

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

/// What must hold for any input of a reader: a sound result or InvalidInput. Each function returns true for a
/// result and false for a refusal, and throws std::logic_error where the result is not sound. Any other
/// exception, a crash or a hang is a fault of the reader.
namespace usp::fuzz {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Bytes of a terminal control sequence at the front of `text`, or of what web pages leave of one; else 0.
inline std::size_t escape_bytes(std::string_view text) {
  const bool whole = text.substr(0, 2) == "\x1b[";
  if (!whole && text.substr(0, 1) != "[") return 0;
  const std::size_t begin = whole ? 2 : 1;
  std::size_t end = begin;
  while (end < text.size() && (whole ? text[end] >= ' ' && text[end] <= '?'
                                     : text[end] == ';' || (text[end] >= '0' && text[end] <= '9')))
    ++end;
  const char last = end < text.size() ? text[end] : '\n';
  if (whole) return last == '\n' ? end : end + 1;
  return last == 'm' && end > begin ? end + 1 : 0;
}

/// Without those, and with blanks for no-break spaces.
inline std::string as_read(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    std::size_t length = escape_bytes(text);
    if (length == 0 && text.substr(0, 2) == "\xc2\xa0") {
      clean += ' ';
      length = 2;
    } else if (length == 0) {
      clean += text.front();
      length = 1;
    }
    text.remove_prefix(length);
  }
  return clean;
}

/// Lines that anybody would take for a device's row: GPU<number>, then a path token. Written apart from the
/// reader.
inline std::size_t row_like_lines(const std::string& text) {
  const std::set<std::string> paths{"X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "C2C"};
  std::size_t count = 0;
  for (const std::string& line : split_lines(as_read(text))) {
    const auto tokens = split_blanks(line);
    if (tokens.size() < 2 || tokens[0].size() < 4 || tokens[0].compare(0, 3, "GPU") != 0) continue;
    if (tokens[0].find_first_not_of("0123456789", 3) != std::string::npos) continue;
    const bool nvlink = tokens[1].size() > 2 && tokens[1].size() < 6 && tokens[1].compare(0, 2, "NV") == 0 &&
                        tokens[1].find_first_not_of("0123456789", 2) == std::string::npos;
    if (nvlink || paths.count(tokens[1]) != 0) ++count;
  }
  return count;
}

/// Indices in range, each pair once, values only where the provenance is known.
inline void require_sound(const topology::Cluster& cluster) {
  const auto devices = static_cast<int>(cluster.devices.size());
  require(devices > 0, "a cluster without devices");
  require(cluster.spec_of_device.size() == cluster.devices.size(), "a device without a spec");
  require(cluster.links.size() == cluster.devices.size() * (cluster.devices.size() - 1) / 2,
          "a pair without a link");
  int id = 0;
  for (const topology::Device& device : cluster.devices) {
    require(device.id == id++, "ids are not dense");
    require(device.nvlink_domain < static_cast<int>(cluster.domains.size()), "a domain out of range");
    for (int nic : device.nics)
      require(nic >= 0 && nic < static_cast<int>(cluster.nics.size()), "a NIC out of range");
  }
  std::set<std::pair<int, int>> pairs;
  for (const topology::Link& link : cluster.links) {
    require(link.a >= 0 && link.a < link.b && link.b < devices, "a link is out of order or range");
    require(pairs.insert({link.a, link.b}).second, "duplicate link");
    require(link.kind != topology::LinkKind::unknown, "a link of no kind");
    require((link.kind == topology::LinkKind::nvlink) == (link.lanes > 0), "lanes do not go with the kind");
    require(link.gb_s.known() == (link.gb_s.provenance != topology::Provenance::unknown),
            "a value without provenance");
  }
}

inline bool nvidia_smi(const std::string& text) {
  try {
    const topology::Cluster cluster = topology::read_nvidia_smi_topo(text, "input");
    require_sound(cluster);
    require(cluster.devices.size() == row_like_lines(text), "parsed rows are not the row-like lines");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

inline bool nccl_xml(const std::string& text) {
  try {
    require_sound(topology::read_nccl_xml(text, "input"));
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

inline bool nccl_tests(const std::string& text) {
  try {
    const topology::NcclTestsResult result = topology::read_nccl_tests(text, "input");
    require(!result.rows.empty(), "a result without rows");
    require(!result.ranks || *result.ranks > 1, "a run of one rank");
    std::size_t rows = 0;
    for (const std::string& line : split_lines(text)) {
      const auto tokens = split_blanks(line);
      if (!tokens.empty() && tokens[0].find_first_not_of("0123456789") == std::string::npos &&
          tokens[0].find_first_not_of('0') != std::string::npos)
        ++rows;
    }
    require(rows == result.rows.size(), "parsed rows are not the lines that begin with a number above 0");
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
      const topology::NcclTestsRow& row = result.rows[i];
      require(row.size_bytes > 0, "a size that is none");
      require(
          i == 0 || row.block > result.rows[i - 1].block || row.size_bytes > result.rows[i - 1].size_bytes,
          "sizes do not rise");
      for (const auto* side : {&row.out_of_place, &row.in_place})
        require(!*side || ((*side)->time_us > 0 && (*side)->busbw_gb_s >= 0), "a time of zero");
    }
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

inline bool slurm(const std::string& text) {
  try {
    const topology::SlurmTopology topology = topology::read_slurm_topology(text, "input");
    std::size_t nodes = 0;
    for (const auto& leaf : topology::fabric_from(topology).leaves) nodes += leaf.size();
    require(nodes == topology.node_names.size(), "a node under no leaf");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

}  // namespace usp::fuzz
