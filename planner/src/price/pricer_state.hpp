// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timeline.hpp"

#include "usp/planner/pricing.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace usp {

/// Query and KV heads of one ulysses rank in one chunk.
struct HeadCount {
  i64 query = 0;
  i64 kv = 0;
  friend bool operator==(const HeadCount& a, const HeadCount& b) {
    return a.query == b.query && a.kv == b.kv;
  }
};

struct HeadSplit {
  explicit HeadSplit(Heads split)
      : heads(std::move(split)), distinct(static_cast<std::size_t>(heads.chunks())) {
    for (int c = 0; c < heads.chunks(); ++c)
      for (int u = 0; u < heads.ulysses(); ++u) {
        auto& list = distinct[static_cast<std::size_t>(c)];
        const HeadCount count{heads.query_of(u, c).size(), heads.kv_of(u, c).size()};
        if (count.query > 0 && std::find(list.begin(), list.end(), count) == list.end())
          list.push_back(count);
      }
  }
  Heads heads;
  std::vector<std::vector<HeadCount>> distinct;  ///< per chunk
};

/// What candidates share.
struct AttentionPricer::Shared {
  std::map<std::pair<int, int>, HeadSplit> heads;  ///< by ulysses, chunks
  std::map<std::tuple<int, int, int, int, i64, i64, bool>, WorkProfile>
      profiles;  ///< by ring, layout, band, gathering
  std::map<std::tuple<int, int, int, int, int, bool, i64, i64>, Geometry> geometries;
};

struct AttentionPricer::Context {
  const AttentionPlan* plan = nullptr;
  const Placement* placement = nullptr;
  const HeadSplit* split = nullptr;
  const WorkProfile* profile = nullptr;
  const Geometry* geometry = nullptr;  ///< only where counts are not even
  i64 q_row = 0, k_row = 0;            ///< tokens of a ring row, where even; else of the largest
};

}  // namespace usp
