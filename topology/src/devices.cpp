// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/devices.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace usp::topology {
namespace {

using Sources = std::map<std::string, std::string>;

BoundedQuantity bound_of(FieldUnit unit) {
  if (unit == FieldUnit::gb_s) return BoundedQuantity::byte_rate;
  return unit == FieldUnit::tflops ? BoundedQuantity::flop_rate : BoundedQuantity::memory_bytes;
}

/// What reads the number of `key`: within the bounds of a rate or a memory, or any above zero.
enum class Bound { of_machines, positive };

Quantity read_value(ObjectReader& device, const char* key, FieldUnit unit, const Sources& sources,
                    Bound bound = Bound::of_machines) {
  auto object = device.maybe_object(key);
  if (!object) return {};
  Quantity result;
  result.value = bound == Bound::positive ? read_si(*object, "value", unit, 1, 1e18)
                                          : read_si(*object, "value", unit, bound_of(unit), 1e18);
  const EnumNames<Provenance> names = {
      {"measured", Provenance::measured}, {"preset", Provenance::preset}, {"guess", Provenance::guess}};
  result.provenance = object->maybe_enumeration("provenance", names).value_or(Provenance::preset);
  const std::string source = object->string("source");
  const auto found = sources.find(source);
  if (found == sources.end()) object->fail("source", fmt::format("'{}' is not a key of sources", source));
  result.source = found->second;
  object->finish();
  return result;
}

DevicePreset read_device(ObjectReader reader, const Sources& sources) {
  DevicePreset preset;
  DeviceSpec& spec = preset.spec;
  spec.name = reader.string("name");
  reader.array("aliases", [&](const Json& value, const std::string& pointer) {
    preset.aliases.push_back(json_string(value, reader.file(), pointer));
  });
  spec.generation = reader.maybe_string("generation").value_or("");
  spec.sm_count = read_value(reader, "sm_count", FieldUnit::si, sources, Bound::positive);
  spec.clock_hz = read_value(reader, "clock_hz", FieldUnit::si, sources, Bound::positive);
  spec.power_w = read_value(reader, "power_w", FieldUnit::si, sources, Bound::positive);
  spec.bf16_tflops = read_value(reader, "bf16_flop_per_s", FieldUnit::tflops, sources);
  spec.fp16_tflops = read_value(reader, "fp16_flop_per_s", FieldUnit::tflops, sources);
  spec.fp32_tflops = read_value(reader, "fp32_flop_per_s", FieldUnit::tflops, sources);
  spec.fp8_tflops = read_value(reader, "fp8_flop_per_s", FieldUnit::tflops, sources);
  spec.memory_bytes = read_value(reader, "memory_bytes", FieldUnit::si, sources);
  spec.memory_gb_s = read_value(reader, "memory_bytes_per_s", FieldUnit::gb_s, sources);
  spec.pcie_p2p = reader.maybe_boolean("pcie_p2p");
  preset.peer =
      reader.enumeration<LinkKind>("peer", {{"nvlink", LinkKind::nvlink}, {"xgmi", LinkKind::xgmi}});
  preset.lanes = static_cast<int>(reader.integer("lanes", 0, 64));
  preset.lane_gb_s = read_value(reader, "lane_bytes_per_s", FieldUnit::gb_s, sources);
  preset.pcie_gb_s = read_value(reader, "pcie_bytes_per_s", FieldUnit::gb_s, sources);
  preset.numa_gb_s = read_value(reader, "numa_bytes_per_s", FieldUnit::gb_s, sources);
  preset.calibration = reader.maybe_string("calibration").value_or("");
  preset.note = reader.maybe_string("note").value_or("");
  reader.finish();
  return preset;
}

/// `lanes` times one lane of the card.
Quantity lanes_gb_s(const DevicePreset& preset, int lanes) {
  if (!preset.lane_gb_s.known() || lanes <= 0) return {};
  return {*preset.lane_gb_s.value * lanes, preset.lane_gb_s.provenance,
          fmt::format("{} links of {}; {}", lanes, preset.spec.name, preset.lane_gb_s.source)};
}

bool replaceable(const Quantity& value) {
  return value.provenance != Provenance::measured;
}

/// Lanes into the switch of the device that has the fewest: it is the slowest of every exchange.
int least_lanes(Cluster& cluster, const NvlinkDomain& domain, const std::vector<int>& widest) {
  const auto of = [&](int device) { return widest[static_cast<std::size_t>(device)]; };
  int least = of(domain.devices.front()), most = least;
  for (const int device : domain.devices)
    least = std::min(least, of(device)), most = std::max(most, of(device));
  std::vector<std::string> fewer;
  for (const int device : domain.devices)
    if (of(device) < most) fewer.push_back(std::to_string(device));
  if (!fewer.empty())
    cluster.notes.push_back(
        fmt::format("device {} has fewer NVLink lanes than its domain's others ({} of {}): it "
                    "bounds their exchanges",
                    fmt::join(fewer, ", "), least, most));
  return least;
}

/// Direct links of every device together, and the links' own bandwidth.
void name_links(Cluster& cluster, const DevicePreset& preset, const std::string& file) {
  std::vector<int> total(cluster.devices.size(), 0), widest(cluster.devices.size(), 0);
  for (Link& link : cluster.links) {
    if (link.lanes == 0) continue;
    const std::string pair = fmt::format("{}-{}", link.a, link.b);
    if (link.kind == LinkKind::nvlink && preset.peer == LinkKind::xgmi)
      throw InvalidInput(
          {file, 0, "devices " + pair},
          fmt::format("NVLink joins them, and {} has xGMI: describe it with 'xgmi' in place of "
                      "'nvswitch' or 'nvlink', as 'xgmi gpu:8({})'",
                      preset.spec.name, preset.spec.name));
    if (link.lanes > preset.lanes || link.kind != preset.peer)
      throw InvalidInput(
          {file, 0, "devices " + pair},
          fmt::format(
              "{} links join them, and {} has {}; name the card that is in this machine with --device",
              link.lanes, preset.spec.name, preset.lanes));
    total[static_cast<std::size_t>(link.a)] += link.lanes;
    total[static_cast<std::size_t>(link.b)] += link.lanes;
    for (const int end : {link.a, link.b}) {
      int& most = widest[static_cast<std::size_t>(end)];
      most = std::max(most, link.lanes);
    }
    if (replaceable(link.gb_s)) link.gb_s = lanes_gb_s(preset, link.lanes);
  }
  for (NvlinkDomain& domain : cluster.domains) {
    int lanes = 0;
    if (domain.switched) {
      lanes = least_lanes(cluster, domain, widest);
      if (lanes == 0) lanes = preset.lanes;
    } else {
      for (int device : domain.devices) lanes = std::max(lanes, total[static_cast<std::size_t>(device)]);
      if (lanes > preset.lanes)
        throw InvalidInput({file, 0, fmt::format("device {}", domain.devices.front())},
                           fmt::format("its direct links add up to {}, and {} has {}; name the card that is "
                                       "in this machine with --device",
                                       lanes, preset.spec.name, preset.lanes));
    }
    if (replaceable(domain.gb_s)) domain.gb_s = lanes_gb_s(preset, lanes);
  }
}

}  // namespace

std::vector<DevicePreset> read_device_presets(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ObjectReader reader(json, file, "");
  check_json_header(
      reader, "usp.devices",
      "take configs/devices/devices.json of this usp, or rename its keys and scale its values as "
      "CHANGELOG.md lists");
  Sources sources;
  const Json& listed = reader.need("sources");
  if (!listed.is_object()) reader.fail("sources", "an object is needed here");
  for (const auto& item : listed.items())
    sources[item.key()] = json_string(item.value(), file, "/sources/" + item.key());
  std::vector<DevicePreset> presets;
  reader.array("devices", [&](const Json& value, const std::string& pointer) {
    presets.push_back(read_device({value, file, pointer}, sources));
  });
  reader.finish();
  return presets;
}

const std::vector<DevicePreset>& device_presets() {
  static const std::vector<DevicePreset> presets = [] {
    const NamedText file = shipped_preset("devices", "devices");
    return read_device_presets(file.text, file.name);
  }();
  return presets;
}

std::optional<std::string> known_generation(std::optional<std::string> word, const std::string& file,
                                            const std::string& token) {
  if (!word) return word;
  std::set<std::string> known;
  for (const DevicePreset& preset : device_presets()) known.insert(preset.spec.generation);
  known.erase("");
  if (known.count(*word) == 0)
    throw InvalidInput({file, 0, token},
                       fmt::format("'{}' is not one of {}; of another architecture leave it out", *word,
                                   fmt::join(known, ", ")));
  return word;
}

const DevicePreset& find_device(const std::string& name, const std::string& flag) {
  const std::string wanted = lower(name);
  std::vector<std::string> names;
  for (const DevicePreset& preset : device_presets()) {
    if (preset.spec.name == wanted ||
        std::find(preset.aliases.begin(), preset.aliases.end(), wanted) != preset.aliases.end())
      return preset;
    names.push_back(preset.spec.name);
  }
  const std::string near = nearest_name(wanted, names);
  throw UsageError(fmt::format("{}: no card '{}' is known; {} names are {}", flag, name,
                               near.empty() ? "the" : fmt::format("did you mean '{}'? The", near),
                               fmt::join(names, ", ")));
}

void name_device(Cluster& cluster, const DevicePreset& preset, const std::string& file) {
  const std::set<int> kinds(cluster.spec_of_device.begin(), cluster.spec_of_device.end());
  if (kinds.size() > 1 && std::all_of(cluster.specs.begin(), cluster.specs.end(),
                                      [](const DeviceSpec& spec) { return spec.name.empty(); }))
    throw InvalidInput(
        {file, 0, ""},
        fmt::format("shows devices of {} generations, and {} is one of them at most; select those of one "
                    "kind with --devices",
                    kinds.size(), preset.spec.name));
  name_links(cluster, preset, file);
  if (!cluster.devices.empty()) cluster.specs = {preset.spec};
  cluster.spec_of_device.assign(cluster.devices.size(), 0);
  for (Node& node : cluster.nodes) {
    if (replaceable(node.pcie_gb_s)) node.pcie_gb_s = preset.pcie_gb_s;
    if (replaceable(node.numa_gb_s)) node.numa_gb_s = preset.numa_gb_s;
  }
  cluster.calibration = preset.calibration;
  if (!preset.note.empty()) cluster.notes.push_back(preset.note);
}

}  // namespace usp::topology
