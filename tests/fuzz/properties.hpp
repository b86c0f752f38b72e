// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../topology/src/peer_access.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/slurm.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

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
  const std::string_view blanks[] = {"\xc2\xa0", "\xe2\x80\x87", "\xe2\x80\xaf", "&nbsp;"};
  const std::string_view nothing[] = {"\xe2\x80\x8b", "\xef\xbb\xbf"};
  std::string clean;
  while (!text.empty()) {
    std::size_t length = escape_bytes(text);
    for (const std::string_view odd : blanks)
      if (length == 0 && text.substr(0, odd.size()) == odd) {
        clean += ' ';
        length = odd.size();
      }
    for (const std::string_view odd : nothing)
      if (length == 0 && text.substr(0, odd.size()) == odd) length = odd.size();
    if (length == 0) {
      clean += text.front();
      length = 1;
    }
    text.remove_prefix(length);
  }
  return clean;
}

/// Cells of a line: of a markdown table without its bars and bold marks, else what blanks separate.
inline std::vector<std::string> cells_of(std::string line) {
  const std::size_t first = line.find_first_not_of(" \t\v\f\r"), last = line.find_last_not_of(" \t\v\f\r");
  if (first != std::string::npos && last > first && line[first] == '|' && line[last] == '|') {
    for (std::size_t at = line.find("**"); at != std::string::npos; at = line.find("**")) line.erase(at, 2);
    for (char& c : line)
      if (c == '|') c = ' ';
    std::erase(line, '`');
  }
  // A launcher's tag stands right before the first word.
  if (const std::size_t tag = line.find("<stdout>:");
      !line.empty() && line[0] == '[' && tag != std::string::npos)
    line.erase(0, tag + 9);
  return split_blanks(line);
}

/// Lines that anybody would take for a device's row: GPU<number> anywhere, then a path token. Written apart
/// from the reader.
inline std::size_t row_like_lines(const std::string& text) {
  const std::set<std::string> paths{"X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "C2C"};
  std::size_t count = 0;
  const auto is_label = [](const std::string& token) {
    return token.size() > 3 && token.compare(0, 3, "GPU") == 0 &&
           token.find_first_not_of("0123456789", 3) == std::string::npos;
  };
  const auto is_path = [&](const std::string& token) {
    const bool nvlink = token.size() > 2 && token.size() < 6 && token.compare(0, 2, "NV") == 0 &&
                        token.find_first_not_of("0123456789", 2) == std::string::npos;
    return nvlink || paths.count(token) != 0;
  };
  for (const std::string& line : split_lines(as_read(text))) {
    const auto tokens = cells_of(line);
    bool row = false;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
      row = row || (is_label(tokens[i]) && is_path(tokens[i + 1]));
    if (row) ++count;
  }
  return count;
}

/// A line of measurements, wherever in the line it begins: a number of bytes above 0, a count, a type, and a
/// decimal where the type is not known; and any line that begins with a number above 0.
inline bool measurement_like(const std::string& line) {
  static const std::set<std::string> types{"float",    "double",   "half",   "bfloat16", "int8",
                                           "uint8",    "int32",    "uint32", "int64",    "uint64",
                                           "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"};
  const auto tokens = cells_of(line);
  const auto whole = [](const std::string& t) {
    return t.find_first_not_of("0123456789") == std::string::npos;
  };
  const auto worded = [](const std::string& t) {
    return std::any_of(t.begin(), t.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  };
  const auto above_zero = [&](const std::string& t) {
    return whole(t) && t.find_first_not_of('0') != std::string::npos;
  };
  if (!tokens.empty() && above_zero(tokens[0])) return true;
  for (std::size_t i = 0; i + 2 < tokens.size(); ++i) {
    if (!above_zero(tokens[i]) || !whole(tokens[i + 1]) || !worded(tokens[i + 2])) continue;
    std::size_t decimals = 0;
    for (std::size_t j = i + 3; j < tokens.size(); ++j)
      decimals += tokens[j].find('.') != std::string::npos &&
                  tokens[j].find_first_not_of("0123456789.") == std::string::npos;
    if (types.count(tokens[i + 2]) != 0 || decimals >= 1) return true;
  }
  return false;
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

inline bool peer_access(const std::string& text) {
  try {
    const topology::PeerAccess access = topology::read_peer_access(text, "input");
    require(!access.devices.empty() && access.open.size() == access.devices.size(), "not one row per device");
    for (std::size_t d = 0; d < access.open.size(); ++d)
      require(access.open[d].size() == access.devices.size() && access.open[d][d], "not one cell per device");
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
    for (const std::string& line : split_lines(as_read(text)))
      if (measurement_like(line)) ++rows;
    require(rows == result.rows.size(), "parsed rows are not the lines of measurements");
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
    require(topology.switches.empty() != topology.blocks.empty(), "switches and blocks in one file");
    std::size_t lines = 0;
    for (const std::string& line : split_lines(lower(text)))
      lines += line.find("switchname=") != std::string::npos && line.find('#') == std::string::npos &&
               line.find('\\') == std::string::npos;
    require(lines <= topology.switches.size() || !topology.blocks.empty(), "a switch was lost");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

}  // namespace usp::fuzz
