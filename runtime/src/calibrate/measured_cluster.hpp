// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "assemble.hpp"

#include "usp/planner/calibration_file.hpp"
#include "usp/topology/cluster.hpp"
#include "usp/topology/devices.hpp"

#include <string>

/// The machine that was measured, in the words of clusters and cards.
namespace usp::measure {

/// What files name as the origin of a measured value.
inline constexpr const char* source = "usp calibrate";
/// A measured value of a cluster.
[[nodiscard]] topology::Quantity quantity(double value);

/// The shipped card of this product name ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"); null: none is.
[[nodiscard]] const topology::DevicePreset* preset_of(const std::string& product);
/// Data sheet of a card that is shipped, with the power limit that is enforced; of another one what its
/// driver says and what it measured.
[[nodiscard]] CalibrationFile::Device device_of_card(const Card& card);
/// "NVIDIA H200, 700 W, 1980 MHz, driver 580.159".
[[nodiscard]] std::string conditions_of(const Card& card);
/// Kind and line of the links between cards: NVLink where links are up or messages were faster than a slot.
[[nodiscard]] CalibrationFile::Links links_of_card(const Card& card, const CalibrationFile& content);

/// The hosts of the machine without their NICs; each rank is a device with the rates of the calibration,
/// whose kernels computed in `dtype`.
[[nodiscard]] topology::Cluster cluster_of_ranks(const Machine& machine, const CalibrationFile& calibration,
                                                 DType dtype);
/// The same of GPUs: cards and links of the kind that was found.
[[nodiscard]] topology::Cluster cluster_of_cards(const Measured& measured,
                                                 const CalibrationFile& calibration);

}  // namespace usp::measure
