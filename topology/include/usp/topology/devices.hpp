// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::topology {

/// One accelerator of configs/devices/devices.json.
struct DevicePreset {
  DeviceSpec spec;
  std::vector<std::string> aliases;
  LinkKind peer = LinkKind::nvlink;  ///< nvlink or xgmi
  int lanes = 0;                     ///< peer links per device; 0: none
  Quantity lane_gb_s;                ///< one peer link, one direction
  Quantity pcie_gb_s;                ///< the card's slot, one direction
  Quantity numa_gb_s;       ///< between the NUMA nodes of a host of its generation, one direction (a guess)
  std::string calibration;  ///< name of the calibration that fits it best; empty: none
  std::string note;         ///< why a calibration is borrowed, or what to mind; may be empty
};

/// Reads a file like configs/devices/devices.json. Throws InvalidInput, also for another schema version.
[[nodiscard]] std::vector<DevicePreset> read_device_presets(const std::string& text, const std::string& file);

/// Those that are shipped, in the order of the file.
[[nodiscard]] const std::vector<DevicePreset>& device_presets();

/// The word of a file for the generation of a card; none: unknown. Throws InvalidInput at `token` for one
/// that no shipped card has.
[[nodiscard]] std::optional<std::string> known_generation(std::optional<std::string> word,
                                                          const std::string& file, const std::string& token);

/// By name or alias, any case ("h100" is "h100-sxm").
/// @param flag what named it, for the message. Throws UsageError that lists the known names.
[[nodiscard]] const DevicePreset& find_device(const std::string& name, const std::string& flag);

/// Names the card of all devices of `cluster`: sets specs, and the bandwidth of every link, domain and slot
/// that follows from the card. Throws InvalidInput when the links cannot be this card's (more NVLinks than it
/// has).
void name_device(Cluster& cluster, const DevicePreset& preset, const std::string& file);

}  // namespace usp::topology
