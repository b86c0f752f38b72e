// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>

namespace usp::topology {

/// Reads an NCCL topology file (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE; root `<system version="1">`) of one
/// host.
///
/// Devices are the `<gpu>` tags in order of `dev`; where a file has none, the `<pci>` of class 0x0302 or
/// 0x0300 in order of bus id, as nvidia-smi numbers them. NICs likewise: `<net>`, else `<pci>` of class 0x02.
/// Paths follow the tree: one switch PIX, several PXB, through the `<cpu>` PHB, between two `<cpu>` SYS.
/// `<nvlink>` to a device is a direct link, to class 0x0680 an NVSwitch; a file without `<nvlink>` says
/// nothing about NVLink, and a note says so.
///
/// PCIe bandwidth is `link_speed` x `link_width` less line coding (8b/10b to 5 GT/s, 128b/130b to 32 GT/s,
/// 242/256 at 64 GT/s), provenance preset: the attributes are nominal, and hand-written files often copy
/// them. A path has its slowest part's; none is given across `<cpu>`. A NIC has the `speed` of its `<net>`,
/// in Mb/s. NVLink speed stays unknown.
///
/// Unused attributes are skipped, as NCCL's versions add some; unknown elements are not.
/// Throws InvalidInput (line, token): no XML, a DTD, a graph file, nesting deeper than 64, several hosts,
/// doubled bus ids, NVLinks to nowhere or of different width at their ends.
[[nodiscard]] Cluster read_nccl_xml(const std::string& text, const std::string& file);

}  // namespace usp::topology
