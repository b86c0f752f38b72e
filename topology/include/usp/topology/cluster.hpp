// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp::topology {

/// How well a number is known. Orders from best to worst; unknown is never zero.
enum class Provenance { measured, preset, guess, unknown };

/// A number with its origin. `value` is empty exactly when provenance is unknown.
struct Quantity {
  std::optional<double> value;
  Provenance provenance = Provenance::unknown;
  std::string source;  ///< file, table or rule it comes from

  [[nodiscard]] bool known() const { return value.has_value(); }

  bool operator==(const Quantity&) const = default;
};

/// One kind of accelerator. Peaks are dense, in TFLOP/s; memory in bytes; bandwidth in GB/s (1e9 bytes/s).
struct DeviceSpec {
  std::string name;        ///< "h100-sxm"; empty when the input names no card
  std::string generation;  ///< "hopper": cards that run the same kernels; empty: unknown
  Quantity sm_count;       ///< multiprocessors
  Quantity clock_hz;       ///< boost clock
  Quantity power_w;        ///< limit of the board
  Quantity bf16_tflops;
  Quantity fp16_tflops;
  Quantity fp32_tflops;
  Quantity fp8_tflops;
  Quantity memory_bytes;
  Quantity memory_gb_s;
  std::optional<bool> pcie_p2p;  ///< peers copy over PCIe without a bounce through host memory

  bool operator==(const DeviceSpec&) const = default;
};

struct Device {
  int id = 0;     ///< global, dense from 0
  int node = 0;   ///< host
  int local = 0;  ///< index inside the host as its tools print it
  std::optional<int> numa;
  int nvlink_domain = -1;  ///< index into Cluster::domains; -1: none (PCIe only)
  std::vector<int>
      nics;  ///< nearest NICs of the same host (indices into Cluster::nics); empty: unknown or none

  bool operator==(const Device&) const = default;
};

/// How two devices of one host (or of one NVLink domain) reach each other. The order is NCCL's, nearest
/// first.
enum class LinkKind { nvlink, c2c, xgmi, pix, pxb, phb, node, sys, unknown };

/// A direct link or path between two devices, `a < b`. Bandwidth is one direction, GB/s; latency in seconds.
struct Link {
  int a = 0;
  int b = 0;
  LinkKind kind = LinkKind::unknown;
  int lanes = 0;  ///< NVLinks bonded, 0 when not NVLink
  Quantity gb_s;
  Quantity latency_s;

  bool operator==(const Link&) const = default;
};

/// Devices that reach each other through NVLink; may span hosts (NVL72), and a host may hold several.
struct NvlinkDomain {
  std::vector<int> devices;
  bool switched =
      false;      ///< full bandwidth between any pair at once (NVSwitch); else only along direct links
  Quantity gb_s;  ///< per device, one direction, all its links together

  bool operator==(const NvlinkDomain&) const = default;
};

struct Nic {
  int id = 0;
  int node = 0;
  std::string name;  ///< "mlx5_0"; empty when the tool gives none
  std::optional<int> numa;
  Quantity gb_s;  ///< one direction

  bool operator==(const Nic&) const = default;
};

enum class FabricKind { none, rail, fat_tree, unknown };

/// What joins the hosts. `oversubscription` is the ratio of NIC bandwidth below a leaf to its uplinks (1 =
/// full).
/// Largest ratio of NIC bandwidth below a leaf switch over its uplinks.
constexpr double max_oversubscription = 1e6;

struct Fabric {
  FabricKind kind = FabricKind::unknown;
  Quantity oversubscription;
  Quantity latency_s;
  std::vector<std::vector<int>> leaves;  ///< nodes under each leaf switch; empty: not known, or rails

  bool operator==(const Fabric&) const = default;
};

struct Node {
  int id = 0;
  std::string name;
  int numa_count = 0;  ///< 0: unknown
  Quantity host_memory_bytes;
  Quantity host_memory_gb_s;  ///< of all its channels together
  Quantity pcie_gb_s;         ///< one direction, per device slot
  Quantity numa_gb_s;         ///< one direction, between two NUMA nodes

  bool operator==(const Node&) const = default;
};

struct CurvePoint {
  double bytes = 0;  ///< message size as nccl-tests prints it (total per rank)
  double time_s = 0;

  bool operator==(const CurvePoint&) const = default;
};

/// Measured times of one collective over message size on this cluster.
struct MeasuredCurve {
  std::string collective;  ///< as nccl-tests names it: "alltoall", "all_gather", "sendrecv", ...
  int ranks = 0;
  int hosts = 0;
  std::string source;
  std::vector<CurvePoint> points;  ///< ascending bytes

  bool operator==(const MeasuredCurve&) const = default;
};

/// Machines as facts: what there is and how well it is known. Decides nothing.
struct Cluster {
  std::string name;
  std::vector<DeviceSpec> specs;    ///< the kinds of device present
  std::vector<int> spec_of_device;  ///< per device, index into specs
  std::vector<Device> devices;
  std::vector<Link> links;  ///< only pairs about which something is known; a < b, sorted
  std::vector<NvlinkDomain> domains;
  std::vector<Node> nodes;
  std::vector<Nic> nics;
  Fabric fabric;
  std::vector<MeasuredCurve> curves;  ///< measured on this cluster; they win over the calibration's
  std::string calibration;            ///< name of the calibration its curves come from; empty: none
  std::vector<std::string> notes;     ///< what a reader derived or could not know, one sentence each

  bool operator==(const Cluster&) const = default;
};

}  // namespace usp::topology
