// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// Times of one collective, of messages that double from first_bytes on (CollectiveRow::bytes).
struct CollectiveCurve {
  Collective operation = Collective::alltoall;
  int ranks = 2;
  int groups = 1;  ///< that made it at once on one host
  double first_bytes = 0;
  std::vector<double> time_s;
  std::optional<Transport> transport{};  ///< that carried it; empty: a library, or what joins ranks of a host
};

/// Rates of hops whose two directions run at once.
struct HopCurve {
  struct Point {
    double bytes = 0;
    double gb_s = 0;  ///< of one direction
  };
  std::optional<Transport> transport;  ///< empty: what carries messages between ranks of a host
  int ranks = 2;                       ///< of a ring whose hops all went at once
  std::string source;
  std::vector<Point> points;
};

/// What transfers add to a kernel beside them.
struct InterferenceRow {
  std::optional<Transport> transport;  ///< as HopCurve::transport
  Interference measured;
};

/// Attention kernels of one backend.
struct AttentionSurface {
  struct Library {
    std::string name, version;
  };
  std::string backend;  ///< word of the backend; empty: not stated
  KernelData data;      ///< without what CalibrationFile::device and memory_efficiency say
  std::optional<Library> library;
  std::string family_source, softmax_source, scaled_why, sustained_source;  ///< the last three may be empty
};

/// Matrix products, in the 16-bit types on a GPU, in fp32 on a host.
struct MeasuredProducts {
  double share = 0, min_share = 0, max_share = 0;  ///< of the device's peak: median and range of large ones
  std::string library, source;
};

/// The content of a calibration file (schema: configs/schema/calibration.v2.schema.json), value by value:
/// what is read can be written again.
struct CalibrationFile {
  struct Device {
    std::string name, source;
    int sm_count = 1;
    std::optional<std::string> generation;
    std::optional<double> clock_hz, power_w;
    double bf16_tflops = 0, memory_gb_s = 0;
  };
  struct Links {
    std::string link_class;  ///< "nvswitch", "pcie", "host"
    double gb_s = 0;
    std::string source;
  };

  /// Ranks that had no core each: kernels and transfers wait for one.
  struct SharedCores {
    int ranks = 0, cores = 0;
  };

  std::string name;
  std::string cluster;  ///< as Calibration::cluster
  Device device;
  std::optional<SharedCores> shared_cores;  ///< empty: every rank had one of its own
  std::optional<Links> links;
  std::vector<CalibrationSource> sources;
  Repeatability repeatability;
  std::vector<CollectiveCurve> collectives;
  std::vector<HopCurve> point_to_point;
  std::vector<InterferenceRow> interference;
  std::optional<MeasuredNetwork> network;
  AttentionSurface attention;                     ///< of the fastest backend, which plans take first
  std::vector<AttentionSurface> other_attention;  ///< of other backends, all named
  std::optional<MeasuredProducts> products;       ///< empty: not measured
  double memory_efficiency = 1;
  std::string memory_source;
};

/// Kernels of a backend, or with an empty word those of a calibration that names none; null: not measured.
template <class Content>
[[nodiscard]] auto* surface_of(Content& content, std::string_view backend) {
  if (content.attention.backend == backend) return &content.attention;
  for (auto& other : content.other_attention)
    if (other.backend == backend) return &other;
  return static_cast<decltype(&content.attention)>(nullptr);
}

/// Throws InvalidInput naming file and JSON pointer.
[[nodiscard]] CalibrationFile read_calibration_file(const std::string& text, const std::string& file);
/// One JSON object; reading it back gives an equal value.
[[nodiscard]] std::string write_calibration(const CalibrationFile& content);
/// The models that the content gives.
[[nodiscard]] Calibration calibration_from(const CalibrationFile& content);

}  // namespace usp
