// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/method.hpp"

#include <vector>

namespace usp::schedule {

/// The stages of a method on one ring, and what follows from their parents.
class StageGraph {
 public:
  /// Replaces the graph; allocates nothing for a ring that is no longer than one before. Throws InternalError
  /// for stages that break the rules of MethodTraits::stages.
  void assign(Method method, const Mesh& ring, DkvReturn dkv_return);

  [[nodiscard]] int size() const { return static_cast<int>(stages_.size()); }
  [[nodiscard]] const Stage& operator[](int k) const { return stages_[static_cast<std::size_t>(k)]; }

  /// Offsets of all stages that are fed, directly or not, from stage k's block.
  [[nodiscard]] RingOffsets fed_by(int k) const { return {(*this)[k].offsets.begin, at(k).fed_end}; }
  /// The partial dK/dV of stage k goes on with its block to stage k + 1. The own row's stays, unless it
  /// cycles.
  [[nodiscard]] bool travels(int k) const { return at(k).chain_end != k; }
  /// Offsets whose gradients the partial holds after stage k.
  [[nodiscard]] RingOffsets summed(int k) const {
    return {(*this)[at(k).chain_begin].offsets.begin, (*this)[k].offsets.end};
  }
  /// Offsets that still add to the partial, from stage k on.
  [[nodiscard]] RingOffsets onward(int k) const {
    return {(*this)[k].offsets.begin, (*this)[at(k).chain_end].offsets.end};
  }
  /// Stages whose partials lie in the outer accumulators; number of stage k among them.
  [[nodiscard]] int outer_partials() const { return outer_partials_; }
  [[nodiscard]] int outer_number(int k) const { return at(k).outer_number; }

 private:
  struct Derived {
    std::int16_t fed_end = 0;
    int chain_begin = 0, chain_end = 0;  ///< stages that one partial passes through
    int outer_number = 0;
  };
  [[nodiscard]] const Derived& at(int k) const { return derived_[static_cast<std::size_t>(k)]; }
  void check(const Mesh& ring) const;

  std::vector<Stage> stages_;
  std::vector<Derived> derived_;
  int outer_partials_ = 0;
};

}  // namespace usp::schedule
