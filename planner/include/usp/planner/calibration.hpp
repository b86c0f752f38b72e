// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/attention_cost_model.hpp"
#include "usp/planner/network_rates.hpp"
#include "usp/planner/transfer_model.hpp"
#include "usp/schedule/backend.hpp"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp {

struct CalibrationSource {
  std::string measurement;  ///< "collectives", "attention"
  std::string source;
  std::string licence;
  std::string version;
  std::string note;
};

/// For the `calibration` object of every report.
struct CalibrationSummary {
  std::string name;  ///< "uncalibrated" when there is none
  bool calibrated = false;
  std::vector<std::string> sources;
  double comm_error = 0;    ///< mean relative distance of measured rows from the monotone curves
  double kernel_error = 0;  ///< mean relative error of the attention fit
  std::vector<std::string> extrapolations;
};

/// The summary as one JSON object.
[[nodiscard]] std::string summary_json(const CalibrationSummary& summary);
/// The summary as lines for people.
[[nodiscard]] std::string summary_text(const CalibrationSummary& summary);

/// Class of the links between ranks that are threads or processes of hosts.
inline constexpr std::string_view host_links = "host";

/// Matrix products as they were measured on the card.
struct MeasuredGemm {
  double share = 0;  ///< of its peak, of large ones
  double band = 0;   ///< relative half width
};

/// Measured curves of one machine, or data-sheet rates in the same shape.
struct Calibration {
  std::string name;
  bool calibrated = false;
  std::string cluster;  ///< that was measured itself, by its name; empty: links of the kind `link_class`
  std::string device;
  std::string other_card;  ///< that it is asked for on another card than it was measured on; empty: it is not
  std::string shared_cores;       ///< sentence on ranks that had no core each; empty: they had, or were GPUs
  double device_bf16_tflops = 0;  ///< data sheet of the card that was measured
  double device_memory_gb_s = 0;
  std::string generation;      ///< of that card; empty: not stated, kernels are borrowed by peak
  double device_clock_hz = 0;  ///< boost clock; 0: not stated
  double device_power_w = 0;   ///< limit of its board; 0: not stated
  std::string
      link_class;  ///< "nvswitch", "pcie", "host": kind of the links of `comm`; empty: of this very machine
  double link_gb_s = 0;  ///< line rate per device of the links that were measured; 0: not stated
  double link_band = 0;  ///< of curves that were measured on another host: how far hosts of the kind differ
  std::string link_lender;  ///< calibration that the curves of the slowest links inside a host come from
  bool asks_p2p = false;    ///< whether peers copy over PCIe decides on the rates of its links
  TransferModel comm;       ///< of the fastest links inside hosts and NVLink domains
  std::optional<TransferModel> pcie;  ///< of PCIe, where a host has other links too; empty: `comm` is all
  NetworkRates network;
  AttentionCostModel kernel;   ///< of the backend that plans take first
  std::string kernel_backend;  ///< its word; empty: not stated
  std::vector<std::pair<std::string, AttentionCostModel>>
      other_kernels;                         ///< of other backends, by their words
  std::optional<MeasuredGemm> gemm;          ///< empty: not measured
  std::array<Interference, 2> interference;  ///< index = Transport
  std::vector<CalibrationSource> sources;

  /// Whether the kernels of both passes of a backend were measured.
  [[nodiscard]] bool measured(Backend backend) const;
  /// Of a backend that was measured; else `kernel`.
  [[nodiscard]] const AttentionCostModel& kernel_of(Backend backend) const;
  [[nodiscard]] const TransferModel& over_pcie() const { return pcie ? *pcie : comm; }
  [[nodiscard]] const Interference& beside(Transport transport) const {
    return interference[static_cast<std::size_t>(transport)];
  }
  /// @param extrapolation bits of the estimates that the report used
  [[nodiscard]] CalibrationSummary summary(std::uint32_t extrapolation) const;
};

/// Reads a calibration file or shipped calibration (schema: configs/schema/calibration.v2.schema.json).
/// Throws InvalidInput naming file and JSON pointer.
[[nodiscard]] Calibration load_calibration(const std::string& name_or_file);
[[nodiscard]] Calibration parse_calibration(const std::string& text, const std::string& file);

struct DataSheet {
  double bf16_tflops = 0;
  double memory_gb_s = 0;
  double link_gb_s = 0;     ///< one direction, per device
  double alpha_s = 5e-6;    ///< one message on one host, order of magnitude
  double efficiency = 0.5;  ///< constant share of the peak
};

/// Spec-sheet alpha-beta with constant efficiency; every estimate says "uncalibrated".
[[nodiscard]] Calibration uncalibrated(const DataSheet& sheet);

}  // namespace usp
