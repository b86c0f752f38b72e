// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/cluster_io.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/synthetic.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace usp::topology {
namespace {

constexpr std::int64_t max_count = 1 << 22;

const EnumNames<Provenance> provenance_names = {{"measured", Provenance::measured},
                                                {"preset", Provenance::preset},
                                                {"guess", Provenance::guess},
                                                {"unknown", Provenance::unknown}};
const EnumNames<LinkKind> link_kind_names = {
    {"nvlink", LinkKind::nvlink}, {"c2c", LinkKind::c2c}, {"xgmi", LinkKind::xgmi},
    {"pix", LinkKind::pix},       {"pxb", LinkKind::pxb}, {"phb", LinkKind::phb},
    {"node", LinkKind::node},     {"sys", LinkKind::sys}, {"unknown", LinkKind::unknown}};
const EnumNames<FabricKind> fabric_kind_names = {{"none", FabricKind::none},
                                                 {"rail", FabricKind::rail},
                                                 {"fat_tree", FabricKind::fat_tree},
                                                 {"unknown", FabricKind::unknown}};

Quantity read_quantity(ObjectReader& reader, const char* key, FieldUnit unit = FieldUnit::si) {
  auto object = reader.maybe_object(key);
  if (!object) return {};
  object->need_every_key();
  Quantity result;
  result.value = maybe_read_si(*object, "value", unit, 0, 1e18);
  result.provenance = object->enumeration("provenance", provenance_names);
  result.source = object->string("source");
  object->finish();
  return result;
}

Json write_quantity(const Quantity& value, FieldUnit unit = FieldUnit::si) {
  if (!value.known() && value.source.empty()) return nullptr;
  return {{"value", si_json(value.value, unit)},
          {"provenance", enum_name(value.provenance, provenance_names)},
          {"source", value.source}};
}

int read_int(ObjectReader& reader, const char* key) {
  return static_cast<int>(reader.integer(key, 0, max_count));
}

std::optional<int> maybe_int(ObjectReader& reader, const char* key) {
  const auto value = reader.maybe_integer(key, 0, max_count);
  return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
}

std::vector<int> read_ints(const Json& value, const std::string& file, const std::string& pointer) {
  if (!value.is_array()) throw InvalidInput({file, 0, pointer}, "an array is needed here");
  std::vector<int> result;
  for (std::size_t i = 0; i < value.size(); ++i)
    result.push_back(
        static_cast<int>(json_integer(value[i], file, fmt::format("{}/{}", pointer, i), 0, max_count)));
  return result;
}

std::vector<int> read_ints(ObjectReader& reader, const char* key) {
  const Json* value = reader.find(key);
  return value == nullptr ? std::vector<int>{}
                          : read_ints(*value, reader.file(), fmt::format("{}/{}", reader.pointer(), key));
}

DeviceSpec read_spec(ObjectReader reader) {
  DeviceSpec spec;
  spec.name = reader.string("name");
  spec.generation =
      known_generation(reader.maybe_string("generation"), reader.file(), reader.pointer() + "/generation")
          .value_or("");
  spec.sm_count = read_quantity(reader, "sm_count");
  spec.clock_hz = read_quantity(reader, "clock_hz");
  spec.power_w = read_quantity(reader, "power_w");
  spec.bf16_tflops = read_quantity(reader, "bf16_flop_per_s", FieldUnit::tflops);
  spec.fp16_tflops = read_quantity(reader, "fp16_flop_per_s", FieldUnit::tflops);
  spec.fp32_tflops = read_quantity(reader, "fp32_flop_per_s", FieldUnit::tflops);
  spec.fp8_tflops = read_quantity(reader, "fp8_flop_per_s", FieldUnit::tflops);
  spec.memory_bytes = read_quantity(reader, "memory_bytes");
  spec.memory_gb_s = read_quantity(reader, "memory_bytes_per_s", FieldUnit::gb_s);
  spec.pcie_p2p = reader.maybe_boolean("pcie_p2p");
  reader.finish();
  return spec;
}

void read_device(Cluster& cluster, ObjectReader reader) {
  Device device;
  device.id = read_int(reader, "id");
  device.node = read_int(reader, "node");
  device.local = read_int(reader, "local");
  device.numa = maybe_int(reader, "numa");
  device.nvlink_domain = maybe_int(reader, "nvlink_domain").value_or(-1);
  device.nics = read_ints(reader, "nics");
  cluster.spec_of_device.push_back(read_int(reader, "spec"));
  reader.finish();
  cluster.devices.push_back(std::move(device));
}

Link read_link(ObjectReader reader) {
  Link link;
  link.a = read_int(reader, "a");
  link.b = read_int(reader, "b");
  link.kind = reader.enumeration("kind", link_kind_names);
  link.lanes = maybe_int(reader, "lanes").value_or(0);
  link.gb_s = read_quantity(reader, "bytes_per_s", FieldUnit::gb_s);
  link.latency_s = read_quantity(reader, "latency_s");
  reader.finish();
  return link;
}

NvlinkDomain read_domain(ObjectReader reader) {
  NvlinkDomain domain;
  domain.devices = read_ints(reader, "devices");
  domain.switched = reader.boolean("switched");
  domain.gb_s = read_quantity(reader, "bytes_per_s", FieldUnit::gb_s);
  reader.finish();
  return domain;
}

Node read_node(ObjectReader reader) {
  Node node;
  node.id = read_int(reader, "id");
  node.name = reader.maybe_string("name").value_or("");
  node.numa_count = maybe_int(reader, "numa_count").value_or(0);
  node.host_memory_bytes = read_quantity(reader, "host_memory_bytes");
  node.host_memory_gb_s = read_quantity(reader, "host_memory_bytes_per_s", FieldUnit::gb_s);
  node.pcie_gb_s = read_quantity(reader, "pcie_bytes_per_s", FieldUnit::gb_s);
  node.numa_gb_s = read_quantity(reader, "numa_bytes_per_s", FieldUnit::gb_s);
  reader.finish();
  return node;
}

Nic read_nic(ObjectReader reader) {
  Nic nic;
  nic.id = read_int(reader, "id");
  nic.node = read_int(reader, "node");
  nic.name = reader.maybe_string("name").value_or("");
  nic.numa = maybe_int(reader, "numa");
  nic.gb_s = read_quantity(reader, "bytes_per_s", FieldUnit::gb_s);
  reader.finish();
  return nic;
}

Fabric read_fabric(ObjectReader reader) {
  Fabric fabric;
  fabric.kind = reader.enumeration("kind", fabric_kind_names);
  fabric.oversubscription = read_quantity(reader, "oversubscription");
  fabric.latency_s = read_quantity(reader, "latency_s");
  reader.array(
      "leaves",
      [&](const Json& value, const std::string& pointer) {
        fabric.leaves.push_back(read_ints(value, reader.file(), pointer));
      },
      true);
  reader.finish();
  return fabric;
}

MeasuredCurve read_curve(ObjectReader reader) {
  MeasuredCurve curve;
  curve.collective = reader.string("collective");
  curve.ranks = read_int(reader, "ranks");
  curve.hosts = maybe_int(reader, "hosts").value_or(0);
  curve.source = reader.maybe_string("source").value_or("");
  reader.array("points", [&](const Json& value, const std::string& pointer) {
    ObjectReader point(value, reader.file(), pointer);
    const double bytes = point.number("bytes", 0, 1e18);
    curve.points.push_back({bytes, point.number("time_s", 0, 1e9)});
    point.finish();
  });
  reader.finish();
  return curve;
}

/// The short form of the shipped presets: a synthetic description and where its figures come from.
Cluster read_described(ObjectReader& reader) {
  Cluster cluster = read_synthetic(reader.string("synthetic"), reader.file());
  ObjectReader sources = reader.object("sources");
  cluster.notes.insert(cluster.notes.begin(), "layout: " + sources.string("layout"));
  const auto nic = sources.maybe_string("nic_bytes_per_s");
  for (Nic& item : cluster.nics)
    if (nic && item.gb_s.known()) {
      item.gb_s.source = *nic;
      item.gb_s.provenance = Provenance::preset;
    }
  if (const auto fabric = sources.maybe_string("fabric")) cluster.notes.push_back("fabric: " + *fabric);
  sources.finish();
  const Quantity host = read_quantity(reader, "host_memory_bytes");
  const Quantity host_rate = read_quantity(reader, "host_memory_bytes_per_s", FieldUnit::gb_s);
  for (Node& node : cluster.nodes) node.host_memory_bytes = host, node.host_memory_gb_s = host_rate;
  reader.array(
      "aliases", [](const Json&, const std::string&) {}, true);
  return cluster;
}

Cluster read_full(ObjectReader& reader) {
  Cluster cluster;
  const auto list = [&](const char* key, bool optional, const auto& each) {
    reader.array(
        key,
        [&](const Json& value, const std::string& pointer) {
          each(ObjectReader(value, reader.file(), pointer));
        },
        optional);
  };
  list("specs", false, [&](ObjectReader item) { cluster.specs.push_back(read_spec(std::move(item))); });
  list("nodes", false, [&](ObjectReader item) { cluster.nodes.push_back(read_node(std::move(item))); });
  list("devices", false, [&](ObjectReader item) { read_device(cluster, std::move(item)); });
  list("nics", true, [&](ObjectReader item) { cluster.nics.push_back(read_nic(std::move(item))); });
  list("links", true, [&](ObjectReader item) { cluster.links.push_back(read_link(std::move(item))); });
  list("domains", true, [&](ObjectReader item) { cluster.domains.push_back(read_domain(std::move(item))); });
  list("curves", true, [&](ObjectReader item) { cluster.curves.push_back(read_curve(std::move(item))); });
  if (auto fabric = reader.maybe_object("fabric")) cluster.fabric = read_fabric(*fabric);
  return cluster;
}

template <class T, class F>
Json write_list(const std::vector<T>& items, F&& write) {
  Json result = Json::array();
  for (const T& item : items) result.push_back(write(item));
  return result;
}

Json write_spec(const DeviceSpec& spec) {
  return {{"name", spec.name},
          {"generation", spec.generation.empty() ? Json(nullptr) : Json(spec.generation)},
          {"sm_count", write_quantity(spec.sm_count)},
          {"clock_hz", write_quantity(spec.clock_hz)},
          {"power_w", write_quantity(spec.power_w)},
          {"bf16_flop_per_s", write_quantity(spec.bf16_tflops, FieldUnit::tflops)},
          {"fp16_flop_per_s", write_quantity(spec.fp16_tflops, FieldUnit::tflops)},
          {"fp32_flop_per_s", write_quantity(spec.fp32_tflops, FieldUnit::tflops)},
          {"fp8_flop_per_s", write_quantity(spec.fp8_tflops, FieldUnit::tflops)},
          {"memory_bytes", write_quantity(spec.memory_bytes)},
          {"memory_bytes_per_s", write_quantity(spec.memory_gb_s, FieldUnit::gb_s)},
          {"pcie_p2p", json_or_null(spec.pcie_p2p)}};
}

Json write_node(const Node& node) {
  return {{"id", node.id},
          {"name", node.name},
          {"numa_count", node.numa_count},
          {"host_memory_bytes", write_quantity(node.host_memory_bytes)},
          {"host_memory_bytes_per_s", write_quantity(node.host_memory_gb_s, FieldUnit::gb_s)},
          {"pcie_bytes_per_s", write_quantity(node.pcie_gb_s, FieldUnit::gb_s)},
          {"numa_bytes_per_s", write_quantity(node.numa_gb_s, FieldUnit::gb_s)}};
}

Json write_devices(const Cluster& cluster) {
  return write_list(cluster.devices, [&](const Device& device) -> Json {
    return {{"id", device.id},
            {"node", device.node},
            {"local", device.local},
            {"spec", cluster.spec_of_device[static_cast<std::size_t>(device.id)]},
            {"numa", json_or_null(device.numa)},
            {"nvlink_domain", device.nvlink_domain < 0 ? Json(nullptr) : Json(device.nvlink_domain)},
            {"nics", device.nics}};
  });
}

Json write_curves(const Cluster& cluster) {
  return write_list(cluster.curves, [](const MeasuredCurve& curve) -> Json {
    return {{"collective", curve.collective},
            {"ranks", curve.ranks},
            {"hosts", curve.hosts},
            {"source", curve.source},
            {"points", write_list(curve.points, [](const CurvePoint& point) -> Json {
               return {{"bytes", point.bytes}, {"time_s", point.time_s}};
             })}};
  });
}

}  // namespace

Cluster read_cluster_json(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ObjectReader reader(json, file, "");
  check_json_header(reader, "usp.cluster",
                    "write it anew with 'usp topo ... -o FILE', or rename its keys and scale its values as "
                    "CHANGELOG.md lists");
  Cluster cluster = reader.has("synthetic") ? read_described(reader) : read_full(reader);
  cluster.name = reader.maybe_string("name").value_or(cluster.name);
  cluster.calibration = reader.maybe_string("calibration").value_or(cluster.calibration);
  reader.array(
      "notes",
      [&](const Json& value, const std::string& pointer) {
        cluster.notes.push_back(json_string(value, file, pointer));
      },
      true);
  reader.finish();
  validate(cluster, file);
  return cluster;
}

std::string write_cluster_json(const Cluster& cluster) {
  validate(cluster, "cluster to be written");
  Json json = json_header("usp.cluster");
  json["name"] = cluster.name;
  json["calibration"] = cluster.calibration;
  json["specs"] = write_list(cluster.specs, write_spec);
  json["nodes"] = write_list(cluster.nodes, write_node);
  json["devices"] = write_devices(cluster);
  json["nics"] = write_list(cluster.nics, [](const Nic& nic) -> Json {
    return {{"id", nic.id},
            {"node", nic.node},
            {"name", nic.name},
            {"numa", json_or_null(nic.numa)},
            {"bytes_per_s", write_quantity(nic.gb_s, FieldUnit::gb_s)}};
  });
  json["links"] = write_list(cluster.links, [](const Link& link) -> Json {
    return {{"a", link.a},
            {"b", link.b},
            {"kind", enum_name(link.kind, link_kind_names)},
            {"lanes", link.lanes},
            {"bytes_per_s", write_quantity(link.gb_s, FieldUnit::gb_s)},
            {"latency_s", write_quantity(link.latency_s)}};
  });
  json["domains"] = write_list(cluster.domains, [](const NvlinkDomain& domain) -> Json {
    return {{"devices", domain.devices},
            {"switched", domain.switched},
            {"bytes_per_s", write_quantity(domain.gb_s, FieldUnit::gb_s)}};
  });
  json["fabric"] = {{"kind", enum_name(cluster.fabric.kind, fabric_kind_names)},
                    {"oversubscription", write_quantity(cluster.fabric.oversubscription)},
                    {"latency_s", write_quantity(cluster.fabric.latency_s)},
                    {"leaves", cluster.fabric.leaves}};
  json["curves"] = write_curves(cluster);
  json["notes"] = cluster.notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<Cluster> find_cluster_preset(const std::string& name) {
  for (const std::string& preset : preset_names("clusters")) {
    const NamedText file = shipped_preset("clusters", preset);
    bool found = preset == lower(name);
    if (!found) {
      const Json json = parse_json(file.text, file.name);
      const Json aliases = json.value("aliases", Json::array());
      found = std::find(aliases.begin(), aliases.end(), Json(lower(name))) != aliases.end();
    }
    if (found) return read_cluster_json(file.text, file.name);
  }
  return std::nullopt;
}

std::string link_kind_name(LinkKind kind) {
  return std::string(enum_name(kind, link_kind_names));
}
std::string provenance_name(Provenance provenance) {
  return std::string(enum_name(provenance, provenance_names));
}
std::string fabric_kind_name(FabricKind kind) {
  return std::string(enum_name(kind, fabric_kind_names));
}

}  // namespace usp::topology
