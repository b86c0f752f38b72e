// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"

#include <algorithm>
#include <vector>

/// What a prepared step fixes of its arguments: everything but addresses, seeds, the contents of lists,
/// flags and values of gates.
namespace usp::kernels {

/// A view but for its address, of which the alignment counts.
struct ViewForm {
  explicit ViewForm(const ConstView& view);
  friend bool operator==(const ViewForm&, const ViewForm&) = default;

  DType type;
  int alignment;  ///< of the first element, in bytes up to 16; 0: no view is given
  i64 batch, rows;
  Range heads;
  i64 width, batch_stride, row_stride, head_stride;
};

struct ScopeForm {
  explicit ScopeForm(const AttendScope& scope);
  friend bool operator==(const ScopeForm&, const ScopeForm&) = default;

  Range query_heads;
  int group;
  i64 slice_count;
  std::optional<Backend> use;
  double scale, softcap, dropout;
  bool alibi, block_mask;
  i64 block_q, block_k, block_rows, block_columns;
};

template <class Args>
struct StepForm;

template <>
struct StepForm<AttendArgs> {
  explicit StepForm(const AttendArgs& args);
  [[nodiscard]] bool fits(const AttendArgs& args) const { return *this == StepForm(args); }
  friend bool operator==(const StepForm&, const StepForm&) = default;

  ViewForm q, k, v, o, lse;
  ScopeForm scope;
  bool overwrite, sink;
};

template <>
struct StepForm<AttendGradArgs> {
  explicit StepForm(const AttendGradArgs& args);
  [[nodiscard]] bool fits(const AttendGradArgs& args) const { return *this == StepForm(args); }
  friend bool operator==(const StepForm&, const StepForm&) = default;

  ViewForm q, k, v, d_o, lse, delta, dq, dk, dv, o;
  ScopeForm scope;
  bool overwrite, overwrite_dkv;
};

template <class Args>
struct StepForm<BlockList<Args>> {
  explicit StepForm(const BlockList<Args>& list)
      : blocks(list.begin(), list.end()), gated(list.gates != nullptr) {}
  [[nodiscard]] bool fits(const BlockList<Args>& list) const {
    return gated == (list.gates != nullptr) &&
           std::equal(blocks.begin(), blocks.end(), list.begin(), list.end(),
                      [](const StepForm<Args>& form, const Args& args) { return form.fits(args); });
  }

  std::vector<StepForm<Args>> blocks;
  bool gated;
};

/// Throws InternalError.
void expect_fit(bool fits);

}  // namespace usp::kernels
