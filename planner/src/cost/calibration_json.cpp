// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/base/presets.hpp"
#include "usp/planner/calibration.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <tuple>

namespace usp {
namespace {

constexpr double most = 1e15;
constexpr double most_s = 1e9;
constexpr double least_s = 1e-18;

void check_header(ObjectReader& top) {
  const std::string renew = "rename its keys and scale its values as CHANGELOG.md lists, or measure anew";
  if (!top.has("format") && top.has("version"))
    top.fail("format", fmt::format("a usp.calibration without the key is of version 1, older than this usp, "
                                   "which reads version {}; {}",
                                   json_schema_version, renew));
  check_json_header(top, "usp.calibration", renew);
}

/// Refuses a time beyond 1 s and 1 s per MB: it counts other units than seconds.
void check_time(const ObjectReader& reader, const char* key, double bytes, double seconds) {
  const double most_allowed = 1 + bytes / (min_rate_gb_s * 1e9);
  if (seconds > most_allowed)
    reader.fail(key,
                fmt::format("{} s for {:.0f} bytes is more than 1 s and 1 s per MB; values are in SI units: "
                            "seconds, bytes per second; 12 us are 0.000012, 20 GB/s are 20000000000",
                            seconds, bytes));
}

/// Seconds as nccl-tests' microseconds convert to them: one measurement is one double from either file.
double seconds_of(double seconds) {
  return from_si(seconds, FieldUnit::us) * 1e-6;
}

std::vector<CalibrationSource> read_sources(ObjectReader& top) {
  std::vector<CalibrationSource> sources;
  top.array("sources", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    sources.push_back({reader.string("measurement"), reader.string("source"), reader.string("licence"),
                       reader.string("version"), reader.maybe_string("note").value_or("")});
    reader.finish();
  });
  return sources;
}

std::vector<CollectiveRow> read_collectives(ObjectReader& top) {
  std::vector<CollectiveRow> rows;
  std::set<std::tuple<Collective, int, int>> seen;
  top.array("collectives", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    const auto operation = reader.enumeration<Collective>("operation");
    const int ranks = static_cast<int>(reader.integer("ranks", 2, 1 << 20));
    auto bytes = static_cast<double>(reader.integer("first_bytes", 1, std::int64_t{1} << 40));
    const int groups = static_cast<int>(reader.maybe_integer("groups", 1, 1 << 20).value_or(1));
    if (!seen.insert({operation, ranks, groups}).second)
      reader.fail("operation", "this operation and number of ranks are given twice; keep one curve");
    const std::size_t before = rows.size();
    reader.array("time_s", [&](const Json& time, const std::string& at) {
      const double seconds = json_number(time, top.file(), at, least_s, most_s);
      check_time(reader, "time_s", bytes, seconds);
      rows.push_back({operation, ranks, bytes, seconds_of(seconds), groups});
      bytes *= 2;
    });
    if (rows.size() - before < 2 || rows.size() - before > 40)
      reader.fail("time_s", "a curve holds 2 to 40 times, one per doubling of first_bytes");
    reader.finish();
  });
  return rows;
}

std::vector<PeerTransferSample> read_hops(ObjectReader& top) {
  std::vector<PeerTransferSample> rows;
  std::set<std::pair<Transport, int>> seen;
  top.array("point_to_point", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    const auto transport = reader.enumeration<Transport>("transport");
    const int ranks = static_cast<int>(reader.maybe_integer("ranks", 2, 1 << 20).value_or(2));
    if (!seen.insert({transport, ranks}).second) reader.fail("transport", "given twice; keep one");
    static_cast<void>(reader.string("source"));
    const std::size_t before = rows.size();
    reader.array("points", [&](const Json& point, const std::string& at) {
      ObjectReader p(point, top.file(), at);
      const double bytes = p.number("bytes", 1, most);
      const double gb_s = read_si(p, "bytes_per_s", FieldUnit::gb_s, 1e-12, most);
      check_time(p, "bytes_per_s", bytes, bytes / (gb_s * 1e9));
      rows.push_back({transport, bytes, bytes / (gb_s * 1e9), ranks});
      p.finish();
    });
    if (rows.size() - before < 2) reader.fail("points", "two points or more make a curve");
    for (std::size_t i = before + 1; i < rows.size(); ++i)
      if (rows[i].bytes <= rows[i - 1].bytes || rows[i].seconds <= rows[i - 1].seconds)
        reader.fail("points", "bytes and times must rise from point to point");
    reader.finish();
  });
  return rows;
}

std::array<Interference, 2> read_interference(ObjectReader& top) {
  std::array<Interference, 2> all;
  std::set<Transport> seen;
  top.array("interference", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    const auto transport = reader.enumeration<Transport>("transport");
    if (!seen.insert(transport).second) reader.fail("transport", "given twice; keep one");
    Interference& entry = all[static_cast<std::size_t>(transport)];
    entry.share = reader.number("ratio", 0, 1);
    entry.low = reader.number("min_ratio", 0, entry.share);
    entry.high = reader.number("max_ratio", entry.share, 1);
    entry.source = reader.string("source");
    reader.finish();
  });
  if (seen.size() != std::size(WordTable<Transport>::words))
    top.fail("interference", "both transports, copy_engine and nccl, must be there");
  return all;
}

KernelFit read_fit(ObjectReader reader) {
  KernelFit fit;
  fit.head_dim = static_cast<int>(reader.integer("head_dim", 1, 1024));
  fit.head_dim_v = static_cast<int>(reader.maybe_integer("head_dim_v", 1, 1024).value_or(fit.head_dim));
  fit.full_extra_keys = reader.maybe_number("full_extra_keys", 0, 10);
  fit.launch_s = seconds_of(reader.number("launch_s", 0, 1));
  fit.peak_tflops = read_si(reader, "peak_flop_per_s", FieldUnit::tflops, BoundedQuantity::flop_rate, most);
  fit.serial = reader.number("serial", 0, 100);
  fit.extra_keys = reader.number("extra_keys", 0, 1e6);
  fit.kv_gb_s = read_si(reader, "kv_bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
  fit.rows = reader.integer("rows", 0, std::int64_t{1} << 40);
  fit.mape = reader.number("mape", 0, 100);
  fit.p90 = reader.number("p90", 0, 100);
  fit.window_mape = reader.maybe_number("window_mape", 0, 100);
  reader.finish();
  return fit;
}

/// Order of head dims in a list: that of queries and keys, then that of values.
template <class Fit>
bool rises(const std::vector<Fit>& fits) {
  if (fits.size() < 2) return true;
  const Fit &before = fits[fits.size() - 2], &last = fits.back();
  return std::pair(before.head_dim, before.head_dim_v) < std::pair(last.head_dim, last.head_dim_v);
}

BackwardFit read_backward(ObjectReader reader) {
  BackwardFit fit;
  fit.head_dim = static_cast<int>(reader.integer("head_dim", 1, 1024));
  fit.head_dim_v = static_cast<int>(reader.maybe_integer("head_dim_v", 1, 1024).value_or(fit.head_dim));
  fit.rate_ratio = reader.number("rate_ratio", 0.1, 10);
  fit.extra_keys = reader.number("extra_keys", -1e6, 1e6);
  fit.launch_s = reader.maybe_number("launch_s", 0, 1);
  fit.rows = reader.maybe_integer("rows", 0, std::int64_t{1} << 40).value_or(0);
  fit.mape = reader.maybe_number("mape", 0, 100).value_or(0);
  fit.p90 = reader.maybe_number("p90", 0, 100).value_or(0);
  reader.finish();
  return fit;
}

void read_family(ObjectReader reader, KernelData& data) {
  data.family = reader.string("name");
  data.softmax_fraction = reader.maybe_number("softmax_fraction", 0, 1).value_or(0);
  static_cast<void>(reader.maybe_string("softmax_source"));
  static_cast<void>(reader.string("source"));
  data.full_gain = reader.maybe_number("full_gain", 0.1, 10).value_or(1);
  data.full_extra_keys = reader.maybe_number("full_extra_keys", 0, 10);
  data.backward_band = reader.maybe_number("backward_band", 0, 10).value_or(data.backward_band);
  bool square = false;
  reader.array("backward", [&](const Json& value, const std::string& pointer) {
    data.backward.push_back(read_backward(ObjectReader(value, reader.file(), pointer)));
    square = square || data.backward.back().head_dim == data.backward.back().head_dim_v;
    if (!rises(data.backward)) reader.fail("backward", "head dims must rise");
  });
  if (!square) reader.fail("backward", "at least one head dim, equal for keys and values, is needed");
  reader.finish();
}

void read_attention(ObjectReader reader, KernelData& data) {
  if (reader.has("library")) {
    ObjectReader library = reader.object("library");
    data.library = library.string("name") + " " + library.string("version");
    library.finish();
  }
  data.tile_rows = static_cast<int>(reader.integer("tile_rows", 1, 4096));
  std::vector<double> tokens;
  reader.array("measured_tokens", [&](const Json& value, const std::string& pointer) {
    tokens.push_back(
        static_cast<double>(json_integer(value, reader.file(), pointer, 1, std::int64_t{1} << 40)));
  });
  if (tokens.size() != 2 || tokens[0] > tokens[1])
    reader.fail("measured_tokens",
                "the least and the most number of tokens measured, in this order, are needed");
  data.min_tokens = tokens[0];
  data.max_tokens = tokens[1];
  bool square = false;
  reader.array("head_dims", [&](const Json& value, const std::string& pointer) {
    data.fits.push_back(read_fit(ObjectReader(value, reader.file(), pointer)));
    square = square || data.fits.back().head_dim == data.fits.back().head_dim_v;
    if (!rises(data.fits)) reader.fail("head_dims", "head dims must rise");
  });
  if (!square) reader.fail("head_dims", "at least one head dim, equal for keys and values, is needed");
  read_family(reader.object("family"), data);
  data.scaled_from = reader.maybe_string("scaled_from").value_or("");
  static_cast<void>(reader.maybe_string("scaled_why"));
  reader.finish();
}

}  // namespace

Calibration parse_calibration(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ObjectReader top(json, file, "");
  check_header(top);
  Calibration calibration;
  calibration.calibrated = true;
  calibration.name = top.string("name");
  calibration.sources = read_sources(top);
  KernelData kernel;
  double memory_gb_s = 0;
  {
    ObjectReader device = top.object("device");
    calibration.device = device.string("name");
    kernel.sm_count = static_cast<int>(device.integer("sm_count", 1, 100000));
    calibration.device_bf16_tflops =
        read_si(device, "bf16_flop_per_s", FieldUnit::tflops, BoundedQuantity::flop_rate, most);
    calibration.device_memory_gb_s = memory_gb_s =
        read_si(device, "memory_bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
    calibration.generation = device.maybe_string("generation").value_or("");
    calibration.device_clock_hz = device.maybe_number("clock_hz", 1, most).value_or(0);
    calibration.device_power_w = device.maybe_number("power_w", 1, most).value_or(0);
    static_cast<void>(device.string("source"));
    device.finish();
  }
  Repeatability repeat;
  {
    ObjectReader reader = top.object("repeatability");
    repeat.below_1mib = reader.number("small_message_ratio", 0, 10);
    repeat.from_1mib = reader.number("large_message_ratio", 0, 10);
    reader.finish();
  }
  {
    ObjectReader reader = top.object("memory_efficiency");
    kernel.memory_bytes_s = memory_gb_s * 1e9 * reader.number("value", 0.01, 1);
    static_cast<void>(reader.string("source"));
    reader.finish();
  }
  if (top.has("links")) {
    ObjectReader links = top.object("links");
    calibration.link_class = links.string("class");
    if (calibration.link_class != "nvswitch" && calibration.link_class != "pcie")
      links.fail("class", fmt::format("'{}' is not one of nvswitch, pcie", calibration.link_class));
    calibration.link_gb_s = read_si(links, "bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
    static_cast<void>(links.string("source"));
    links.finish();
  }
  auto rows = read_collectives(top);
  auto hops = read_hops(top);
  calibration.interference = read_interference(top);
  read_attention(top.object("attention"), kernel);
  top.finish();
  calibration.comm = TransferModel(std::move(rows), std::move(hops), repeat, calibration.name);
  calibration.kernel = AttentionCostModel(std::move(kernel));
  return calibration;
}

Calibration load_calibration(const std::string& name_or_file) {
  const NamedText found = file_or_preset("calibrations", name_or_file);
  return parse_calibration(found.text, found.name);
}

}  // namespace usp
