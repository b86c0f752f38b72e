// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/stage_graph.hpp"

#include "usp/base/error.hpp"

#include <algorithm>

namespace usp::schedule {

void StageGraph::check(const Mesh& ring) const {
  int next = 0;
  for (int k = 0; k < size(); ++k) {
    const Stage& stage = (*this)[k];
    expects(stage.offsets.begin == next && stage.offsets.any(),
            "stages attend to every block once, in order");
    expects(k == 0 ? stage.parent < 0 : stage.parent >= 0 && stage.parent < k,
            "a stage's block comes from an earlier stage");
    expects(k == 0 || (stage.fetched_with >= stage.parent && stage.fetched_with < k),
            "a block is sent once its parent has it, and before it is attended");
    next = stage.offsets.end;
  }
  expects(next == ring.ring(), "stages attend to the whole ring");
}

void StageGraph::assign(Method method, const Mesh& ring, DkvReturn dkv_return) {
  stages_.clear();
  method->stages(ring, stages_);
  check(ring);
  derived_.assign(stages_.size(), {});
  outer_partials_ = 0;
  for (int k = 0; k < size(); ++k) {
    Derived& d = derived_[static_cast<std::size_t>(k)];
    d.fed_end = (*this)[k].offsets.end;
    d.outer_number = outer_partials_;
    outer_partials_ += (*this)[k].outer_partial ? 1 : 0;
  }
  for (int k = size() - 1; k > 0; --k) {
    std::int16_t& end = derived_[static_cast<std::size_t>((*this)[k].parent)].fed_end;
    end = std::max(end, at(k).fed_end);
  }
  const bool circulates = dkv_return != DkvReturn::direct;
  const auto travels_from = [&](int k) {
    return circulates && (*this)[k].partial_travels && (k > 0 || dkv_return == DkvReturn::cycle);
  };
  for (int k = 0; k < size(); ++k)
    derived_[static_cast<std::size_t>(k)].chain_begin =
        k > 0 && travels_from(k - 1) ? at(k - 1).chain_begin : k;
  for (int k = size() - 1; k >= 0; --k)
    derived_[static_cast<std::size_t>(k)].chain_end = travels_from(k) ? at(k + 1).chain_end : k;
}

}  // namespace usp::schedule
