// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/base/units.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/synthetic.hpp"
#include "usp/topology/validate.hpp"

#include <cmath>
#include <set>
#include <string>

/// Properties of the parsers of flag values, in the terms of properties.hpp; they refuse with
/// UsageError.
namespace usp::fuzz {

/// Whether `read` returns; InvalidInput and UsageError are refusals.
template <class F>
bool taken(const F& read) {
  try {
    read();
    return true;
  } catch (const InvalidInput&) {
    return false;
  } catch (const UsageError&) {
    return false;
  }
}

/// A description of a cluster; what it gives is valid and its name gives the same again.
inline bool synthetic(const std::string& text) {
  return taken([&] {
    const topology::Cluster cluster = topology::read_synthetic(text, "input");
    topology::validate(cluster, "result");
    require(!cluster.devices.empty(), "a description without devices");
    if (cluster.devices.size() > 64) return;
    const topology::Cluster again = topology::read_synthetic(cluster.name, "again");
    require(again.devices == cluster.devices && again.links.size() == cluster.links.size(),
            "the name of a description describes another cluster");
  });
}

/// --fabric over 16 hosts: each below one leaf, or no leaves.
inline bool fabric(const std::string& text) {
  return taken([&] {
    topology::Fabric fabric;
    topology::set_fabric(fabric, text, 16, "--fabric");
    const topology::Quantity& ratio = fabric.oversubscription;
    require(!ratio.known() || (std::isfinite(*ratio.value) && *ratio.value >= 1), "a ratio below 1");
    std::set<int> hosts;
    for (const auto& leaf : fabric.leaves)
      for (const int host : leaf) require(hosts.insert(host).second && host < 16, "a host twice or unknown");
    require(hosts.empty() || hosts.size() == 16, "a host without a leaf");
  });
}

/// Numbers with units, each as every flag that takes one reads it.
inline bool units(const std::string& text) {
  bool any = taken([&] {
    const double rate = parse_line_rate_gb_s(text, "--pcie");
    require(std::isfinite(rate) && rate > 0, "a rate that is none");
  });
  any |= taken([&] { require(parse_bytes(text, "--memory") >= 0, "a size below zero"); });
  any |= taken([&] {
    const std::int64_t tokens = parse_tokens(text, "--seq", std::int64_t{1} << 40);
    require(tokens >= 1 && tokens <= (std::int64_t{1} << 40), "tokens out of range");
  });
  any |= taken([&] { require(std::isfinite(parse_number(text, "--x")), "a number that is none"); });
  any |= taken([&] { static_cast<void>(parse_integer(text, "--x")); });
  return any;
}

/// --nic on a host of two devices.
inline bool nic(const std::string& text) {
  return taken([&] {
    if (text.empty()) return;
    topology::ClusterRequest request;
    request.source = "gpu:2 nic:2";
    request.format = topology::SourceFormat::synthetic;
    request.nic = text;
    const topology::Cluster cluster = topology::compose(request);
    require(!cluster.nics.empty() && cluster.nics.size() <= 1024, "as many NICs as no host has");
    for (const topology::Nic& item : cluster.nics)
      require(item.gb_s.known() && std::isfinite(*item.gb_s.value) && *item.gb_s.value > 0,
              "a NIC of no rate");
  });
}

/// --devices of a cluster.
inline bool device_list(const std::string& text) {
  return taken([&] {
    const std::vector<int> devices = topology::parse_device_list(text, "--devices");
    const std::set<int> once(devices.begin(), devices.end());
    require(!devices.empty() && once.size() == devices.size(), "a device twice or none at all");
    require(*once.begin() >= 0 && *once.rbegin() <= 65535, "a device out of range");
  });
}

}  // namespace usp::fuzz
