// SPDX-License-Identifier: Apache-2.0
#include "request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/price_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr const char* pass_names[] = {"forward", "backward"};

Json bytes_json(const TransferBytes& bytes) {
  return {{"max_sent_bytes", bytes.sent_max},
          {"max_received_bytes", bytes.received_max},
          {"mean_sent_bytes", bytes.mean},
          {"total_bytes", bytes.total}};
}

std::string band_text(double band, bool calibrated) {
  return fmt::format(" (x 1/{} to x {}{})", format_fixed(1 + band, 2), format_fixed(1 + band, 2),
                     calibrated ? "" : ", uncalibrated");
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
         (left_out > 0 ? fmt::format("  ... and {} (--json lists all)\n", counted(left_out, "more tick"))
                       : "");
}

std::string byte_table(const PriceReport& report) {
  TextTable table;
  table.column("pass");
  table.column("transfer");
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
  Json json = json_header("usp.price");
  json["request"] = request_json(report);
  json["time_s"] = report.seconds;
  json["band"] = report.band;
  json["flop_per_s_per_device"] = report.flop_s;
  json["mfu"] = json_or_null(report.mfu);
  json["uneven_heads"] = report.uneven_heads;
  Json passes = Json::object(), traffic = Json::object(), ticks = Json::array();
  for (std::size_t i = 0; i < std::min(report.passes.size(), std::size(pass_names)); ++i) {
    const PassReport& pass = report.passes[i];
    passes[pass_names[i]] = {{"time_s", pass.price.seconds},        {"compute_s", pass.price.compute_s},
                             {"exposed_s", pass.price.exposed_s},   {"comm_s", pass.price.comm_s},
                             {"overlapped", pass.price.overlapped}, {"band", pass.price.band},
                             {"model_flops", pass.flops},           {"flop_per_s_per_device", pass.flop_s}};
    for (std::size_t t = 0; t < pass.ticks.size(); ++t)
      ticks.push_back({{"pass", pass_names[i]},
                       {"tick", t},
                       {"compute_s", pass.ticks[t].compute_s},
                       {"intra_node_s", pass.ticks[t].intra_node_s},
                       {"inter_node_s", pass.ticks[t].inter_node_s},
                       {"total_s", pass.ticks[t].total_s}});
    Json of_pass = bytes_json(pass.all);
    of_pass["transfers"] = Json::object();
    for (const TransferBytes& transfer : pass.transfers)
      of_pass["transfers"][transfer.name] = bytes_json(transfer);
    traffic[pass_names[i]] = std::move(of_pass);
  }
  json["passes"] = std::move(passes);
  json["ticks"] = std::move(ticks);
  json["traffic"] = std::move(traffic);
  json["calibration"] = parse_json(summary_json(report.calibration), "calibration");
  json["notes"] = report.notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string price_text(const PriceReport& report) {
  const AttentionPlan& plan = report.call.plan;
  const AttentionCandidate called{.plan = plan, .placement = report.call.placement};
  std::string text = fmt::format(
      "{}{} on {}: {}{}\n", format_seconds(report.seconds),
      band_text(report.band, report.calibration.calibrated), report.cluster.name, describe(called),
      plan.backend->on_gpu ? fmt::format("; backend {}", word_of(plan.backend)) : "");
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    const PassPrice& price = report.passes[i].price;
    text += fmt::format("  {} {}: kernels {}, communication {} of which {} shows, {} per device{}\n",
                        pass_names[i], format_seconds(price.seconds), format_seconds(price.compute_s),
                        format_seconds(price.comm_s), format_seconds(std::max(0.0, price.exposed_s)),
                        format_flop_rate(report.passes[i].flop_s),
                        price.overlapped                ? ""
                        : report.call.execution.overlap ? " (not overlapped: that is faster here)"
                                                        : " (not overlapped, as asked)");
  }
  text += fmt::format("  {} per device{}\n", format_flop_rate(report.flop_s),
                      report.mfu ? fmt::format(", MFU {}", format_percent(*report.mfu)) : "");
  text += fmt::format("\nTicks\n{}\nBytes\n{}\n{}", tick_table(report), byte_table(report),
                      summary_text(report.calibration));
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace usp
