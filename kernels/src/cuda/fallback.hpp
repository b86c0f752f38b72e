// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/kernel_traits.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

/// What backends with a fallback share.
namespace usp::kernels::cuda {

/// Makes the kernel that takes what a backend does not; called at the first need.
using MakeFallback = std::function<std::unique_ptr<AttentionKernel>()>;

/// The fallback of one kernel, and its runs that depart from their plan.
class Fallback {
 public:
  explicit Fallback(MakeFallback make) : make_(std::move(make)) {}

  [[nodiscard]] AttentionKernel& kernel() {
    if (kernel_ == nullptr) kernel_ = make_();
    return *kernel_;
  }
  /// Departures of one run.
  void count(Pass pass, const std::vector<schedule::UnsupportedReason>& departures) {
    for (const schedule::UnsupportedReason why : departures)
      ++departed_[static_cast<std::size_t>(pass)][static_cast<std::size_t>(why)];
  }
  /// For AttentionKernel::fallbacks().
  [[nodiscard]] std::vector<BackendFallback> counts() const {
    std::vector<BackendFallback> all;
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (std::size_t why = 0; why < schedule::unsupported_reason_count; ++why)
        if (const i64 count = departed_[static_cast<std::size_t>(pass)][why]; count > 0)
          all.push_back({pass, static_cast<schedule::UnsupportedReason>(why), count});
    return all;
  }

 private:
  MakeFallback make_;
  std::unique_ptr<AttentionKernel> kernel_;
  std::array<std::array<i64, schedule::unsupported_reason_count>, 2> departed_{};  ///< by pass and reason
};

/// What the traits of a call have whatever the direction.
template <class Args>
[[nodiscard]] schedule::CallTraits call_traits(const Args& a, int compute_major) {
  schedule::CallTraits call;
  call.type = a.q.type;
  call.dqk = a.q.width;
  call.dv = a.v.width;
  call.query_heads = a.scope.query_heads;
  call.group = a.scope.group;
  const ScoreTerms& terms = *a.scope.terms;
  call.negative_scale = terms.scale <= 0;
  call.softcap = terms.softcap != 0;
  call.alibi = terms.alibi_slopes != nullptr;
  call.dropout = terms.dropout != 0;
  call.block_mask = terms.blocks != nullptr;
  call.compute_major = compute_major;
  return call;
}

}  // namespace usp::kernels::cuda
