// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/planner/report.hpp"

/// Parts of report_data_json; page/ names in its scripts what each key is drawn as.
namespace usp {

/// Hosts, devices with their ranks, links, NICs and fabric; of the first hosts of a large machine.
[[nodiscard]] Json report_machine_json(const ReportInput& input);
/// Per kind of layer and pass: length of the ticks, and kernels and transfers of some ranks. Empty where no
/// layer computes softmax attention.
[[nodiscard]] Json report_ticks_json(const ReportInput& input);
/// Axes and points of the sweep; null: there is none.
[[nodiscard]] Json report_sweep_json(const ReportInput& input);

/// "ring 4 x ulysses 8, tensor 2": a candidate in few words.
[[nodiscard]] std::string short_choice(const Choice& choice);
/// Memory of the card in bytes, or what the request puts in its place.
[[nodiscard]] double card_bytes(const PlanRequest& request);

}  // namespace usp
