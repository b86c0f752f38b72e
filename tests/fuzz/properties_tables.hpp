// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/planner/calibration.hpp"
#include "usp/planner/score.hpp"

#include <cmath>
#include <string>

/// Properties of the readers of measurements, in the terms of properties.hpp.
namespace usp::fuzz {

inline bool score_csv(const std::string& text) {
  try {
    const std::vector<ScoreRow> rows = parse_score_csv(text, "input");
    require(!rows.empty(), "a table without rows");
    for (const ScoreRow& row : rows) {
      require(row.line >= 1 && !row.machine.empty(), "a row from nowhere");
      require(row.ring >= 1 && row.ulysses >= 1 && std::int64_t{row.ring} * row.ulysses == row.world,
              "a mesh of another size than the world");
      require(row.kv_heads >= 1 && row.heads % row.kv_heads == 0, "KV heads that do not divide the heads");
      require(!row.seconds || (std::isfinite(*row.seconds) && *row.seconds >= 0), "a time that is none");
    }
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

/// Every collective that was read can be timed, and every share of a line divides.
inline bool calibration(const std::string& text) {
  try {
    const Calibration read = parse_calibration(text, "input");
    require(!read.name.empty() && !read.sources.empty(), "a calibration from nowhere");
    for (const Collective operation :
         {Collective::alltoall, Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
      if (!read.comm.has(operation)) continue;
      for (const int ranks : {2, 3, 8, 64})
        for (const double bytes : {1.0, 65536.0, 1e12}) {
          const double seconds = read.comm.time(operation, ranks, bytes).seconds;
          require(seconds > 0 && !std::isnan(seconds), "a collective that takes no time");
        }
    }
    for (const NetworkRates::Curve& curve : read.network.curves)
      require(curve.table.at(curve.most_bytes) > 0 && curve.band >= 0, "a transfer that takes no time");
    for (const Efficiency& share : {read.network.hop, read.network.exchange})
      require(share.low > 0 && share.low <= share.value && share.value <= share.high,
              "a share outside its range");
    require(!summary_json(read.summary(0)).empty(), "a calibration that prints nothing");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

}  // namespace usp::fuzz
