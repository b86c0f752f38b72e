// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

/// What the files that add terms to a step's time share.
namespace usp::terms {

/// Part of a transfer's time by which it lengthens matrix products beside it: NCCL holds about 20 of 132
/// multiprocessors while it runs.
inline constexpr double beside_products = 0.15;

inline void add(PlanCandidate& c, const char* name, double seconds, double band, std::string reason) {
  if (seconds > 0) c.terms.push_back({name, seconds, band, std::move(reason)});
}

inline double d(i64 value) {
  return static_cast<double>(value);
}

/// Transfers beside compute: what exceeds it shows, and the rest slows it down.
inline double shows(double transfer_s, double compute_s) {
  return std::max(0.0, transfer_s - compute_s) + beside_products * std::min(transfer_s, compute_s);
}

/// Transfers and the compute that may hide them.
struct Beside {
  Estimate transfer;
  double compute_s = 0;
};

/// What shows of several, and by how much it grows where the transfers take as long as their bands allow:
/// what is just hidden may come to show.
inline Estimate shown(std::initializer_list<Beside> all) {
  double seconds = 0, longer = 0;
  for (const Beside& one : all) {
    seconds += shows(one.transfer.seconds, one.compute_s);
    longer += shows(one.transfer.seconds * (1 + one.transfer.band), one.compute_s);
  }
  return {seconds, seconds > 0 ? longer / seconds - 1 : 0};
}

}  // namespace usp::terms
