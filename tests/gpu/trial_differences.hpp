// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "difference.hpp"
#include "gated_trial.hpp"

#include <vector>

namespace usp::test {

/// What the results of runs differ from those of a trial that has run.
class TrialDifferences {
 public:
  TrialDifferences(const GatedTrial& truth, kernels::Memory& memory)
      : truth_(truth),
        memory_(memory),
        found_(0, static_cast<i64>(truth.results().size() * sizeof(Difference))) {
    memory.set_bytes(found_.data(), 0, found_.bytes());
  }
  /// Compares the first tensors of GatedTrial::results(), in stream order.
  void add(const GatedTrial& run, std::size_t tensors) {
    for (std::size_t i = 0; i < tensors; ++i) {
      const DeviceCopy &a = truth_.results()[i], &b = run.results()[i];
      add_difference(reinterpret_cast<Difference*>(found_.data()) + i, a.data(), b.data(), a.bytes(),
                     memory_.stream());
    }
  }
  void add(const GatedTrial& run) { add(run, truth_.results().size()); }
  /// Of each tensor; blocks until they are known.
  [[nodiscard]] std::vector<Difference> read() const {
    std::vector<Difference> found(truth_.results().size());
    memory_.to_host(found.data(), found_.data(), found_.bytes());
    memory_.synchronize();
    return found;
  }

 private:
  const GatedTrial& truth_;
  kernels::Memory& memory_;
  device::DeviceBuffer found_;
};

}  // namespace usp::test
