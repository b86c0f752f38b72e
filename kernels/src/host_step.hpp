// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace usp::kernels {

/// A step of a host backend, which works on slices as they are: it owns a copy of them.
template <class Args, class Compute>
class HostStep final : public PreparedStep<Args> {
 public:
  HostStep(const Args& a, Compute compute)
      : PreparedStep<Args>(a),
        slices_(a.scope.slices, a.scope.slices + a.scope.slice_count),
        compute_(std::move(compute)) {}

 private:
  void enqueue(const Args& given) override {
    Args a = given;
    a.scope.slices = slices_.data();
    compute_(a);
  }

  std::vector<schedule::Slice> slices_;
  Compute compute_;
};

/// `compute(args)` lives as long as what it refers to: the kernel.
template <class Args, class Compute>
[[nodiscard]] std::unique_ptr<PreparedStep<Args>> make_host_step(const Args& a, Compute compute) {
  return std::make_unique<HostStep<Args, Compute>>(a, std::move(compute));
}

}  // namespace usp::kernels
