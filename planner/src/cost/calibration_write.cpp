// SPDX-License-Identifier: Apache-2.0
#include "calibration_words.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/planner/calibration_file.hpp"

namespace usp {
namespace {

template <class T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

Json transport_json(const std::optional<Transport>& transport) {
  return transport ? word_of(*transport) : host_transport;
}

Json device_json(const CalibrationFile::Device& device) {
  Json json{{"name", device.name},
            {"sm_count", device.sm_count},
            {"bf16_flop_per_s", si_json(device.bf16_tflops, FieldUnit::tflops)},
            {"memory_bytes_per_s", si_json(device.memory_gb_s, FieldUnit::gb_s)}};
  put(json, "generation", device.generation);
  put(json, "clock_hz", device.clock_hz);
  put(json, "power_w", device.power_w);
  json["source"] = device.source;
  return json;
}

Json sources_json(const std::vector<CalibrationSource>& sources) {
  Json list = Json::array();
  for (const CalibrationSource& source : sources) {
    Json json{{"measurement", source.measurement},
              {"source", source.source},
              {"licence", source.licence},
              {"version", source.version}};
    if (!source.note.empty()) json["note"] = source.note;
    list.push_back(std::move(json));
  }
  return list;
}

Json collectives_json(const std::vector<CollectiveCurve>& curves) {
  Json list = Json::array();
  for (const CollectiveCurve& curve : curves) {
    Json json{{"operation", word_of(curve.operation)}, {"ranks", curve.ranks}};
    if (curve.transport) json["transport"] = word_of(*curve.transport);
    if (curve.groups > 1) json["groups"] = curve.groups;
    json["first_bytes"] = static_cast<std::int64_t>(curve.first_bytes);
    json["time_s"] = curve.time_s;
    list.push_back(std::move(json));
  }
  return list;
}

Json hops_json(const std::vector<HopCurve>& curves) {
  Json list = Json::array();
  for (const HopCurve& curve : curves) {
    Json json{{"transport", transport_json(curve.transport)}};
    if (curve.ranks > 2) json["ranks"] = curve.ranks;
    json["source"] = curve.source;
    json["points"] = Json::array();
    for (const HopCurve::Point& point : curve.points)
      json["points"].push_back(
          {{"bytes", point.bytes}, {"bytes_per_s", si_json(point.gb_s, FieldUnit::gb_s)}});
    list.push_back(std::move(json));
  }
  return list;
}

Json interference_json(const std::vector<InterferenceRow>& rows) {
  Json list = Json::array();
  for (const InterferenceRow& row : rows) {
    Json& json = list.emplace_back(Json{{"transport", transport_json(row.transport)},
                                        {"ratio", row.measured.share},
                                        {"min_ratio", row.measured.low},
                                        {"max_ratio", row.measured.high}});
    if (row.measured.tick_s > 0) json["tick_s"] = row.measured.tick_s;
    json["source"] = row.measured.source;
  }
  return list;
}

Json network_json(const MeasuredNetwork& network) {
  Json json{{"bytes_per_s", si_json(network.gb_s, FieldUnit::gb_s)},
            {"latency_s", network.latency_s},
            {"source", network.source},
            {"curves", Json::array()}};
  for (const NetworkCurve& curve : network.curves) {
    Json entry{{"operation", word_of(curve.key.operation)},
               {"hosts", curve.key.hosts},
               {"ranks_per_host", curve.key.ranks_per_host}};
    if (curve.key.groups > 1) entry["groups"] = curve.key.groups;
    entry["share"] = curve.share;
    entry["min_share"] = curve.min_share;
    entry["max_share"] = curve.max_share;
    entry["points"] = Json::array();
    for (const NetworkPoint& point : curve.points)
      entry["points"].push_back({{"bytes", point.bytes}, {"time_s", point.time_s}});
    json["curves"].push_back(std::move(entry));
  }
  if (network.interference)
    json["interference"] = {{"ratio", *network.interference},
                            {"min_ratio", network.min_interference.value_or(*network.interference)},
                            {"max_ratio", network.max_interference.value_or(*network.interference)}};
  return json;
}

template <class Fit>
void put_head_dims(Json& json, const Fit& fit) {
  json["head_dim"] = fit.head_dim;
  if (fit.head_dim_v != fit.head_dim) json["head_dim_v"] = fit.head_dim_v;
}

Json fit_json(const KernelFit& fit) {
  Json json;
  put_head_dims(json, fit);
  put(json, "full_extra_keys", fit.full_extra_keys);
  json["launch_s"] = fit.launch_s;
  json["peak_flop_per_s"] = si_json(fit.peak_tflops, FieldUnit::tflops);
  json["serial"] = fit.serial;
  json["extra_keys"] = fit.extra_keys;
  if (fit.kv_gb_s) json["kv_bytes_per_s"] = si_json(*fit.kv_gb_s, FieldUnit::gb_s);
  json["rows"] = fit.rows;
  json["mape"] = fit.mape;
  json["p90"] = fit.p90;
  put(json, "long_p90", fit.long_p90);
  put(json, "window_mape", fit.window_mape);
  return json;
}

Json backward_json(const BackwardFit& fit) {
  Json json;
  put_head_dims(json, fit);
  json["rate_ratio"] = fit.rate_ratio;
  json["extra_keys"] = fit.extra_keys;
  put(json, "launch_s", fit.launch_s);
  put(json, "serial", fit.serial);
  json["rows"] = fit.rows;
  json["mape"] = fit.mape;
  json["p90"] = fit.p90;
  put(json, "long_p90", fit.long_p90);
  return json;
}

Json family_json(const AttentionSurface& surface) {
  const KernelData& data = surface.data;
  Json json{{"name", data.family}, {"source", surface.family_source}};
  if (data.softmax_fraction > 0) json["softmax_fraction"] = data.softmax_fraction;
  if (!surface.softmax_source.empty()) json["softmax_source"] = surface.softmax_source;
  json["backward"] = Json::array();
  for (const BackwardFit& fit : data.backward) json["backward"].push_back(backward_json(fit));
  if (data.full_gain != 1) json["full_gain"] = data.full_gain;
  put(json, "full_extra_keys", data.full_extra_keys);
  json["backward_band"] = data.backward_band;
  return json;
}

Json attention_json(const AttentionSurface& surface) {
  const KernelData& data = surface.data;
  Json json;
  if (!surface.backend.empty()) json["backend"] = surface.backend;
  if (surface.library)
    json["library"] = {{"name", surface.library->name}, {"version", surface.library->version}};
  if (data.element_bytes != 2) json["element_bytes"] = data.element_bytes;
  if (data.carries_state) json["carries_state"] = true;
  if (data.call_forward_s > 0 || data.call_backward_s > 0)
    json["call"] = {{"forward_s", data.call_forward_s}, {"backward_s", data.call_backward_s}};
  json["measured_tokens"] = {static_cast<std::int64_t>(data.min_tokens),
                             static_cast<std::int64_t>(data.max_tokens)};
  json["tile_rows"] = data.tile_rows;
  if (data.sustained != 1)
    json["sustained"] = {{"ratio", data.sustained}, {"source", surface.sustained_source}};
  if (!data.scaled_from.empty()) json["scaled_from"] = data.scaled_from;
  if (!surface.scaled_why.empty()) json["scaled_why"] = surface.scaled_why;
  json["head_dims"] = Json::array();
  for (const KernelFit& fit : data.fits) json["head_dims"].push_back(fit_json(fit));
  json["family"] = family_json(surface);
  return json;
}

}  // namespace

std::string write_calibration(const CalibrationFile& content) {
  Json json = json_header("usp.calibration");
  json["name"] = content.name;
  if (!content.cluster.empty()) json["cluster"] = content.cluster;
  json["device"] = device_json(content.device);
  if (const auto& shared = content.shared_cores)
    json["shared_cores"] = {{"ranks", shared->ranks}, {"cores", shared->cores}};
  json["sources"] = sources_json(content.sources);
  if (content.links)
    json["links"] = {{"class", content.links->link_class},
                     {"bytes_per_s", si_json(content.links->gb_s, FieldUnit::gb_s)},
                     {"source", content.links->source}};
  json["repeatability"] = {{"small_message_ratio", content.repeatability.below_1mib},
                           {"large_message_ratio", content.repeatability.from_1mib}};
  json["collectives"] = collectives_json(content.collectives);
  json["point_to_point"] = hops_json(content.point_to_point);
  json["interference"] = interference_json(content.interference);
  if (content.network) json["network"] = network_json(*content.network);
  json["attention"] = attention_json(content.attention);
  if (!content.other_attention.empty()) {
    json["other_attention"] = Json::array();
    for (const AttentionSurface& surface : content.other_attention)
      json["other_attention"].push_back(attention_json(surface));
  }
  if (content.products)
    json["products"] = {{"share", content.products->share},
                        {"min_share", content.products->min_share},
                        {"max_share", content.products->max_share},
                        {"library", content.products->library},
                        {"source", content.products->source}};
  json["memory_efficiency"] = {{"value", content.memory_efficiency}, {"source", content.memory_source}};
  return json.dump(1) + "\n";
}

}  // namespace usp
