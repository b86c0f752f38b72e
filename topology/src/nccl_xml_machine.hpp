// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl_xml_tree.hpp"

#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <vector>

/// What an NCCL topology file says, device by device. Not installed.
namespace usp::topology::nccl {

/// Where something hangs in the PCIe tree.
struct BufferSlot {
  std::size_t cpu = 0;
  std::vector<int> switches;      ///< identities, from the root down
  std::vector<Quantity> uplinks;  ///< of each switch
  Quantity slot_gb_s;
};

/// How many switches, from the root, two places of one <cpu> have in common.
[[nodiscard]] std::size_t shared_switches(const BufferSlot& a, const BufferSlot& b);

struct NvLink {
  std::string target;  ///< bus id, lower case
  int count = 0;
  bool to_switch = false;
  bool xgmi = false;
  long line = 0;
};

struct Gpu {
  std::string bus_id;
  std::optional<int> dev;
  std::optional<int> sm;
  BufferSlot place;
  std::vector<NvLink> links;
};

struct Network {
  std::string bus_id;  ///< empty: not on PCIe
  std::string name;
  std::optional<int> dev;
  Quantity gb_s;
  BufferSlot place;
};

struct Machine {
  std::vector<std::optional<int>> cpu_numa;  ///< per <cpu>
  std::vector<Gpu> gpus;                     ///< at least one
  std::vector<Network> networks;
  std::vector<std::string> notes;
};

[[nodiscard]] Machine read_machine(const xml::Element& root, const std::string& file);

}  // namespace usp::topology::nccl
