// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_times.hpp"
#include "pass_accumulator.hpp"
#include "transfer_kinds.hpp"

#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/detail/work_profile.hpp"
#include "usp/planner/pricing.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace usp {

struct HeadSplit {
  explicit HeadSplit(Heads split)
      : heads(std::move(split)), distinct_(static_cast<std::size_t>(heads.chunks()) * parts.size()) {
    for (int c = 0; c < heads.chunks(); ++c)
      for (const HeadPart part : parts)
        for (int u = 0; u < heads.ulysses(); ++u) {
          auto& list = distinct_[at(c, part)];
          const HeadCount count{heads.query_of(u, c, part).size(), heads.kv_of(u, c, part).size()};
          if (count.query > 0 && std::find(list.begin(), list.end(), count) == list.end())
            list.push_back(count);
        }
  }
  [[nodiscard]] const std::vector<HeadCount>& distinct_of(int chunk, HeadPart part) const {
    return distinct_[at(chunk, part)];
  }
  Heads heads;

 private:
  static constexpr std::array parts{HeadPart::all, HeadPart::first_half, HeadPart::second_half};
  static std::size_t at(int chunk, HeadPart part) {
    return static_cast<std::size_t>(chunk) * parts.size() + static_cast<std::size_t>(part);
  }
  std::vector<std::vector<HeadCount>> distinct_;
};

/// What one move of a kind costs.
struct MoveCost {
  const TransferPattern* pattern = nullptr;
  double bytes = -1;  ///< per peer; negative: not known
  StagingTimes staging;
};

/// What candidates share.
struct AttentionPricer::Shared {
  Shared(LinkPricer& links, const ExecutionOptions& options)
      : cards(links.cluster(), links.calibration()), sum(links, options) {}

  CardBackends cards;
  std::shared_ptr<const schedule::MaskedBatch> batch;  ///< of the last band
  Band band;
  std::map<std::pair<int, int>, HeadSplit> heads;  ///< by ulysses, chunks
  std::map<std::tuple<int, int, int, int, i64, i64>, WorkProfile>
      profiles;  ///< by ring, layout, gathering, band
  std::map<std::tuple<int, int, int, int, int, bool, i64, i64>, schedule::TokenMap>
      geometries;                      ///< of one mesh's size
  std::pair<int, int> geometry_mesh;   ///< ring and ulysses of `geometries`
  std::array<TransferKinds, 2> kinds;  ///< of the schedule's passes
  PassAccumulator sum;
  /// Steps of some ranks, by backend, pass, mesh, method, layout and band.
  std::map<std::tuple<const BackendTraits*, Pass, int, int, int, std::string_view, LayoutKind, i64, i64>,
           std::vector<schedule::StepBackends>>
      sampled;
  // Of the pass that is being priced.
  std::vector<MoveCost> costs;           ///< by kind
  std::vector<TickTransfers> exchanges;  ///< by group of ticks; room for them
  std::vector<TickTransfers*> started;   ///< by group of ticks; null: not known
};

struct AttentionPricer::Context {
  const AttentionPlan* plan = nullptr;
  const Placement* placement = nullptr;
  const HeadSplit* split = nullptr;
  const WorkProfile* profile = nullptr;
  const schedule::TokenMap* geometry = nullptr;  ///< only where counts are not even
  i64 q_row = 0, k_row = 0;                      ///< tokens of a ring row, where even; else of the largest
  std::array<Backend, 2> computes;               ///< each pass, of a context to price

  [[nodiscard]] BlockShape largest_block() const {
    const auto rows = static_cast<double>(q_row), keys = static_cast<double>(k_row);
    return {rows, keys, rows * keys};
  }
};

}  // namespace usp
