// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json.hpp"
#include "usp/base/table.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/price_report.hpp"

#include <algorithm>

namespace usp {
namespace {

constexpr const char* pass_names[] = {"forward", "backward"};

Json bytes_json(const TransferBytes& bytes) {
  return {{"sent_max", bytes.sent_max},
          {"received_max", bytes.received_max},
          {"mean", bytes.mean},
          {"total", bytes.total}};
}

Json plan_json(const AttentionCall& call) {
  const AttentionPlan& plan = call.plan;
  return {{"mesh", {{"ring", plan.mesh.ring()}, {"ulysses", plan.mesh.ulysses}}},
          {"ring_inner", plan.mesh.ring_inner},
          {"method", word_of(plan.method)},
          {"layout", word_of(plan.layout)},
          {"dkv_return", word_of(plan.dkv_return)},
          {"head_chunks", plan.head_chunks},
          {"order", word_of(call.placement.order)},
          {"prune", plan.prune},
          {"transport", word_of(call.execution.transport)}};
}

Json shape_json(const AttentionCall& call) {
  const AttentionShape& shape = call.plan.shape;
  const Band& band = call.plan.band;
  const bool windowed = band.diff_max != unbounded;
  return {{"batch", shape.batch},
          {"seq", shape.q_tokens},
          {"query_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim_qk", shape.head_dim_qk},
          {"head_dim_v", shape.head_dim_v},
          {"dtype", word_of(shape.dtype)},
          {"causal", band.diff_min == 0},
          {"window", windowed ? Json(band.diff_max + 1) : Json(nullptr)},
          {"documents", call.documents.count()}};
}

std::string band_text(double band) {
  return " (x 1/" + format_fixed(1 + band, 2) + " to x " + format_fixed(1 + band, 2) + ")";
}

std::string tick_table(const PriceReport& report) {
  constexpr std::size_t most = 24;
  TextTable table;
  table.column("pass");
  for (const char* name : {"tick", "kernels", "inside hosts", "between hosts", "length"})
    table.column(name, TextTable::Align::right);
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    const auto& ticks = report.passes[i].ticks;
    for (std::size_t t = 0; t < ticks.size(); ++t) {
      if (t >= most) {
        ++left_out;
        continue;
      }
      table.row({pass_names[i], std::to_string(t), format_seconds(ticks[t].compute_s),
                 format_seconds(ticks[t].intra_node_s), format_seconds(ticks[t].inter_node_s),
                 format_seconds(ticks[t].total_s)});
    }
  }
  return table.str(2) +
         (left_out > 0 ? "  ... and " + std::to_string(left_out) + " more ticks (--json lists all)\n" : "");
}

std::string byte_table(const PriceReport& report) {
  TextTable table;
  table.column("pass");
  table.column("move");
  for (const char* name : {"sent, busiest rank", "received, busiest rank", "mean per rank", "all ranks"})
    table.column(name, TextTable::Align::right);
  const auto row = [&](const char* pass, const TransferBytes& bytes) {
    table.row({pass, bytes.name, format_bytes(static_cast<double>(bytes.sent_max)),
               format_bytes(static_cast<double>(bytes.received_max)), format_bytes(bytes.mean),
               format_bytes(static_cast<double>(bytes.total))});
  };
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    if (i > 0) table.rule();
    for (const TransferBytes& bytes : report.passes[i].transfers) row(pass_names[i], bytes);
    row(pass_names[i], report.passes[i].all);
  }
  return table.str(2);
}

}  // namespace

std::string price_json(const PriceReport& report) {
  Json json = {{"format", "usp.price"},
               {"version", 1},
               {"cluster", report.cluster},
               {"time_ms", report.seconds * 1e3},
               {"band", report.band},
               {"attention", shape_json(report.call)},
               {"plan", plan_json(report.call)},
               {"uneven_heads", report.uneven_heads}};
  Json passes = Json::object(), bytes = Json::object(), ticks = Json::array();
  for (std::size_t i = 0; i < std::min(report.passes.size(), std::size(pass_names)); ++i) {
    const PassReport& pass = report.passes[i];
    passes[pass_names[i]] = {
        {"time_ms", pass.price.seconds * 1e3},      {"compute_ms", pass.price.compute_s * 1e3},
        {"exposed_ms", pass.price.exposed_s * 1e3}, {"comm_ms", pass.price.comm_s * 1e3},
        {"overlapped", pass.price.overlapped},      {"band", pass.price.band}};
    for (std::size_t t = 0; t < pass.ticks.size(); ++t)
      ticks.push_back({{"pass", pass_names[i]},
                       {"tick", t},
                       {"compute_ms", pass.ticks[t].compute_s * 1e3},
                       {"fast_ms", pass.ticks[t].intra_node_s * 1e3},
                       {"slow_ms", pass.ticks[t].inter_node_s * 1e3},
                       {"total_ms", pass.ticks[t].total_s * 1e3}});
    Json of_pass = bytes_json(pass.all);
    of_pass["transfers"] = Json::object();
    for (const TransferBytes& move : pass.transfers) of_pass["transfers"][move.name] = bytes_json(move);
    bytes[pass_names[i]] = std::move(of_pass);
  }
  json["passes"] = std::move(passes);
  json["ticks"] = std::move(ticks);
  json["bytes"] = std::move(bytes);
  json["calibration"] = parse_json(summary_json(report.calibration), "calibration");
  json["notes"] = report.notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string price_text(const PriceReport& report) {
  const AttentionPlan& plan = report.call.plan;
  std::string text = format_seconds(report.seconds) + band_text(report.band) + " on " + report.cluster +
                     ": " + "ring " + std::to_string(plan.mesh.ring()) + " x ulysses " +
                     std::to_string(plan.mesh.ulysses) + ", " + std::string(word_of(plan.layout)) + ", " +
                     std::string(word_of(plan.method)) + "\n";
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    const PassPrice& price = report.passes[i].price;
    text += std::string("  ") + pass_names[i] + " " + format_seconds(price.seconds) + ": kernels " +
            format_seconds(price.compute_s) + ", communication " + format_seconds(price.comm_s) +
            " of which " + format_seconds(std::max(0.0, price.exposed_s)) + " shows" +
            (price.overlapped ? "" : " (not overlapped: that is faster here)") + "\n";
  }
  text += "\nTicks\n" + tick_table(report) + "\nBytes\n" + byte_table(report) + "\n" +
          summary_text(report.calibration);
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace usp
