// SPDX-License-Identifier: Apache-2.0
#include "calibration_words.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/planner/calibration_file.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/words.hpp"
#include "usp/topology/devices.hpp"

#include <fmt/format.h>

#include <set>
#include <tuple>

namespace usp {
namespace {

constexpr double most = 1e15;
constexpr double most_s = 1e9;
constexpr double least_s = 1e-18;
// Messages of a gather may cross the network once for a host of many ranks, which counts as many shares.
constexpr double least_share = 1e-6, most_share = 1e4;
constexpr double least_product_share = 1e-4;

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

/// Empty for the word of ranks of a host.
std::optional<Transport> read_transport(ObjectReader& reader) {
  if (reader.string("transport") == host_transport) return std::nullopt;
  return reader.enumeration<Transport>("transport");
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

std::vector<CollectiveCurve> read_collectives(ObjectReader& top) {
  std::vector<CollectiveCurve> curves;
  std::set<std::tuple<Collective, std::optional<Transport>, int, int>> seen;
  top.array("collectives", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    CollectiveCurve curve;
    curve.operation = reader.enumeration<Collective>("operation");
    if (reader.has("transport")) curve.transport = reader.enumeration<Transport>("transport");
    curve.ranks = static_cast<int>(reader.integer("ranks", 2, 1 << 20));
    curve.first_bytes = static_cast<double>(reader.integer("first_bytes", 1, std::int64_t{1} << 40));
    curve.groups = static_cast<int>(reader.maybe_integer("groups", 1, 1 << 20).value_or(1));
    if (!seen.insert({curve.operation, curve.transport, curve.ranks, curve.groups}).second)
      reader.fail("operation",
                  "this operation, transport and number of ranks are given twice; keep one curve");
    double bytes = curve.first_bytes;
    reader.array("time_s", [&](const Json& time, const std::string& at) {
      curve.time_s.push_back(json_number(time, top.file(), at, least_s, most_s));
      check_time(reader, "time_s", bytes, curve.time_s.back());
      bytes *= 2;
    });
    if (curve.time_s.size() < 2 || curve.time_s.size() > 40)
      reader.fail("time_s", "a curve holds 2 to 40 times, one per doubling of first_bytes");
    reader.finish();
    curves.push_back(std::move(curve));
  });
  return curves;
}

std::vector<HopCurve> read_hops(ObjectReader& top) {
  std::vector<HopCurve> curves;
  std::set<std::pair<std::optional<Transport>, int>> seen;
  top.array("point_to_point", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    HopCurve curve;
    curve.transport = read_transport(reader);
    curve.ranks = static_cast<int>(reader.maybe_integer("ranks", 2, 1 << 20).value_or(2));
    if (!seen.insert({curve.transport, curve.ranks}).second)
      reader.fail("transport", "given twice; keep one");
    curve.source = reader.string("source");
    reader.array("points", [&](const Json& point, const std::string& at) {
      ObjectReader p(point, top.file(), at);
      const double bytes = p.number("bytes", 1, most);
      const double gb_s = read_si(p, "bytes_per_s", FieldUnit::gb_s, 1e-12, most);
      check_time(p, "bytes_per_s", bytes, bytes / (gb_s * 1e9));
      curve.points.push_back({bytes, gb_s});
      p.finish();
    });
    if (curve.points.size() < 2) reader.fail("points", "two points or more make a curve");
    for (std::size_t i = 1; i < curve.points.size(); ++i) {
      const HopCurve::Point &before = curve.points[i - 1], &point = curve.points[i];
      if (point.bytes <= before.bytes || point.bytes / point.gb_s <= before.bytes / before.gb_s)
        reader.fail("points", "bytes and times must rise from point to point");
    }
    reader.finish();
    curves.push_back(std::move(curve));
  });
  return curves;
}

std::vector<InterferenceRow> read_interference(ObjectReader& top) {
  std::vector<InterferenceRow> rows;
  std::set<std::optional<Transport>> seen;
  top.array("interference", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    InterferenceRow row;
    row.transport = read_transport(reader);
    if (!seen.insert(row.transport).second) reader.fail("transport", "given twice; keep one");
    row.measured.share = reader.number("ratio", 0, 1);
    row.measured.low = reader.number("min_ratio", 0, row.measured.share);
    row.measured.high = reader.number("max_ratio", row.measured.share, 1);
    row.measured.source = reader.string("source");
    row.measured.tick_s = reader.maybe_number("tick_s", 0, 1).value_or(0);
    reader.finish();
    rows.push_back(std::move(row));
  });
  const bool host = seen.count(std::nullopt) > 0;
  if (seen.size() != (host ? 1 : std::size(WordTable<Transport>::words)))
    top.fail("interference", "both transports, copy_engine and nccl, must be there, or host alone");
  return rows;
}

NetworkCurve read_network_curve(ObjectReader reader) {
  NetworkCurve curve;
  curve.key.operation = reader.enumeration<NetworkOperation>("operation");
  curve.key.hosts = static_cast<int>(reader.integer("hosts", 2, 1 << 16));
  curve.key.ranks_per_host = static_cast<int>(reader.integer("ranks_per_host", 1, 1 << 16));
  curve.key.groups = static_cast<int>(reader.maybe_integer("groups", 1, 1 << 16).value_or(1));
  curve.share = reader.number("share", least_share, most_share);
  curve.min_share = reader.number("min_share", least_share, curve.share);
  curve.max_share = reader.number("max_share", curve.share, most_share);
  reader.array("points", [&](const Json& value, const std::string& at) {
    ObjectReader point(value, reader.file(), at);
    const double bytes = point.number("bytes", 1, most);
    const double seconds = point.number("time_s", least_s, most_s);
    if (!curve.points.empty() && bytes <= curve.points.back().bytes)
      reader.fail("points", "bytes must rise from point to point");
    check_time(point, "time_s", bytes * curve.key.messages_per_host(), seconds);
    curve.points.push_back({bytes, seconds});
    point.finish();
  });
  if (curve.points.size() < 2) reader.fail("points", "two points or more make a curve");
  reader.finish();
  return curve;
}

MeasuredNetwork read_network(ObjectReader reader) {
  MeasuredNetwork network;
  network.gb_s = read_si(reader, "bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
  network.latency_s = reader.number("latency_s", 0, 10);
  network.source = reader.string("source");
  reader.array("curves", [&](const Json& value, const std::string& pointer) {
    NetworkCurve curve = read_network_curve(ObjectReader(value, reader.file(), pointer));
    for (const NetworkCurve& other : network.curves)
      if (other.key == curve.key)
        reader.fail("curves", "one operation, hosts, ranks_per_host and groups twice");
    network.curves.push_back(std::move(curve));
  });
  if (reader.has("interference")) {
    ObjectReader beside = reader.object("interference");
    network.interference = beside.number("ratio", 0, 1);
    network.min_interference = beside.number("min_ratio", 0, *network.interference);
    network.max_interference = beside.number("max_ratio", *network.interference, 1);
    beside.finish();
  }
  reader.finish();
  return network;
}

KernelFit read_fit(ObjectReader reader) {
  KernelFit fit;
  fit.head_dim = static_cast<int>(reader.integer("head_dim", 1, 1024));
  fit.head_dim_v = static_cast<int>(reader.maybe_integer("head_dim_v", 1, 1024).value_or(fit.head_dim));
  fit.full_extra_keys = reader.maybe_number("full_extra_keys", 0, 10);
  fit.launch_s = reader.number("launch_s", 0, 1);
  fit.peak_tflops = read_si(reader, "peak_flop_per_s", FieldUnit::tflops, BoundedQuantity::flop_rate, most);
  fit.serial = reader.number("serial", 0, 100);
  fit.extra_keys = reader.number("extra_keys", 0, 1e6);
  if (reader.find("kv_bytes_per_s") != nullptr)
    fit.kv_gb_s = read_si(reader, "kv_bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
  fit.rows = reader.integer("rows", 0, std::int64_t{1} << 40);
  fit.mape = reader.number("mape", 0, 100);
  fit.p90 = reader.number("p90", 0, 100);
  fit.window_mape = reader.maybe_number("window_mape", 0, 100);
  fit.long_p90 = reader.maybe_number("long_p90", 0, 100);
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
  fit.serial = reader.maybe_number("serial", 0, 100);
  fit.rows = reader.maybe_integer("rows", 0, std::int64_t{1} << 40).value_or(0);
  fit.mape = reader.maybe_number("mape", 0, 100).value_or(0);
  fit.p90 = reader.maybe_number("p90", 0, 100).value_or(0);
  fit.long_p90 = reader.maybe_number("long_p90", 0, 100);
  reader.finish();
  return fit;
}

void read_family(ObjectReader reader, AttentionSurface& surface) {
  KernelData& data = surface.data;
  data.family = reader.string("name");
  data.softmax_fraction = reader.maybe_number("softmax_fraction", 0, 1).value_or(0);
  surface.softmax_source = reader.maybe_string("softmax_source").value_or("");
  surface.family_source = reader.string("source");
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

/// The word of a backend that is measured by itself.
std::string read_backend(ObjectReader& reader) {
  const auto backend = reader.enumeration<Backend>("backend");
  if (backend.has_parts())
    reader.fail("backend",
                fmt::format("{} is {}: its parts are measured; name the one that these kernels are",
                            word_of(backend), backend->summary));
  return std::string(word_of(backend));
}

AttentionSurface read_attention(ObjectReader reader) {
  AttentionSurface surface;
  KernelData& data = surface.data;
  if (reader.has("backend")) surface.backend = read_backend(reader);
  if (reader.has("library")) {
    ObjectReader library = reader.object("library");
    surface.library = {library.string("name"), library.string("version")};
    library.finish();
  }
  data.element_bytes = static_cast<int>(reader.maybe_integer("element_bytes", 1, 8).value_or(2));
  if (data.element_bytes & (data.element_bytes - 1))
    reader.fail("element_bytes", "an element has 1, 2, 4 or 8 bytes");
  data.carries_state = reader.maybe_boolean("carries_state").value_or(false);
  if (reader.has("call")) {
    ObjectReader call = reader.object("call");
    data.call_forward_s = call.number("forward_s", 0, 1);
    data.call_backward_s = call.number("backward_s", 0, 1);
    call.finish();
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
  read_family(reader.object("family"), surface);
  if (reader.has("sustained")) {
    ObjectReader sustained = reader.object("sustained");
    data.sustained = sustained.number("ratio", 0.1, 1);
    surface.sustained_source = sustained.string("source");
    sustained.finish();
  }
  data.scaled_from = reader.maybe_string("scaled_from").value_or("");
  surface.scaled_why = reader.maybe_string("scaled_why").value_or("");
  reader.finish();
  return surface;
}

/// Refuses kernels of hosts beside links of cards, and the other way round.
void check_device_of(const ObjectReader& top, const CalibrationFile& content) {
  if (!content.links) return;
  const bool host = content.links->link_class == host_links;
  std::vector<std::string> words{content.attention.backend};
  for (const AttentionSurface& other : content.other_attention) words.push_back(other.backend);
  for (std::size_t i = 0; i < words.size(); ++i)
    if (const auto backend = find_backend(words[i]); backend && (*backend)->on_gpu == host)
      throw InvalidInput(
          {top.file(), 0, i == 0 ? "/attention/backend" : fmt::format("/other_attention/{}/backend", i - 1)},
          fmt::format(
              "{} computes on {}, and the links are of class {}: name the backend that was measured, or the "
              "class of these links",
              words[i], host ? "GPUs" : "hosts", content.links->link_class));
}

/// Of other backends than `first`: each named, and once.
std::vector<AttentionSurface> read_other_attention(ObjectReader& top, const std::string& first) {
  std::vector<AttentionSurface> others;
  std::set<std::string> seen{first};
  top.array("other_attention", [&](const Json& value, const std::string& pointer) {
    ObjectReader reader(value, top.file(), pointer);
    if (first.empty() || !reader.has("backend"))
      reader.fail("backend", "where several backends were measured, each entry names its own");
    others.push_back(read_attention(std::move(reader)));
    if (!seen.insert(others.back().backend).second)
      throw InvalidInput({top.file(), 0, pointer + "/backend"}, "given twice; keep one entry per backend");
  });
  return others;
}

MeasuredProducts read_products(ObjectReader reader) {
  MeasuredProducts products;
  products.share = reader.number("share", least_product_share, 1);
  products.min_share = reader.number("min_share", least_product_share, products.share);
  products.max_share = reader.number("max_share", products.share, 1);
  products.library = reader.string("library");
  products.source = reader.string("source");
  reader.finish();
  return products;
}

CalibrationFile::Device read_device(ObjectReader reader) {
  CalibrationFile::Device device;
  device.name = reader.string("name");
  device.sm_count = static_cast<int>(reader.integer("sm_count", 1, 100000));
  device.bf16_tflops =
      read_si(reader, "bf16_flop_per_s", FieldUnit::tflops, BoundedQuantity::flop_rate, most);
  device.memory_gb_s =
      read_si(reader, "memory_bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
  device.generation = topology::known_generation(reader.maybe_string("generation"), reader.file(),
                                                 reader.pointer() + "/generation");
  device.clock_hz = reader.maybe_number("clock_hz", 1, most);
  device.power_w = reader.maybe_number("power_w", 1, most);
  device.source = reader.string("source");
  reader.finish();
  return device;
}

CalibrationFile::Links read_links(ObjectReader reader) {
  CalibrationFile::Links links;
  links.link_class = reader.string("class");
  if (links.link_class != "nvswitch" && links.link_class != "pcie" && links.link_class != "host")
    reader.fail("class", fmt::format("'{}' is not one of nvswitch, pcie, host", links.link_class));
  links.gb_s = read_si(reader, "bytes_per_s", FieldUnit::gb_s, BoundedQuantity::byte_rate, most);
  links.source = reader.string("source");
  reader.finish();
  return links;
}

}  // namespace

CalibrationFile read_calibration_file(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ObjectReader top(json, file, "");
  check_header(top);
  CalibrationFile content;
  content.name = top.string("name");
  content.cluster = top.maybe_string("cluster").value_or("");
  content.sources = read_sources(top);
  content.device = read_device(top.object("device"));
  {
    ObjectReader reader = top.object("repeatability");
    content.repeatability.below_1mib = reader.number("small_message_ratio", 0, 10);
    content.repeatability.from_1mib = reader.number("large_message_ratio", 0, 10);
    reader.finish();
  }
  {
    ObjectReader reader = top.object("memory_efficiency");
    content.memory_efficiency = reader.number("value", 0.01, 1);
    content.memory_source = reader.string("source");
    reader.finish();
  }
  if (auto shared = top.maybe_object("shared_cores")) {
    content.shared_cores = {static_cast<int>(shared->integer("ranks", 2, max_ranks)),
                            static_cast<int>(shared->integer("cores", 1, max_ranks))};
    shared->finish();
  }
  if (top.has("links")) content.links = read_links(top.object("links"));
  content.collectives = read_collectives(top);
  content.point_to_point = read_hops(top);
  content.interference = read_interference(top);
  if (top.has("network")) content.network = read_network(top.object("network"));
  content.attention = read_attention(top.object("attention"));
  if (top.has("other_attention"))
    content.other_attention = read_other_attention(top, content.attention.backend);
  check_device_of(top, content);
  if (top.has("products")) content.products = read_products(top.object("products"));
  top.finish();
  return content;
}

}  // namespace usp
