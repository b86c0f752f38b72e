// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pass_runner.hpp"

#include "usp/schedule/expand.hpp"

#include <array>
#include <memory>
#include <vector>

namespace usp {

/// The schedule of all ranks in compact form.
[[nodiscard]] CompactSchedule schedule_of(const TokenMap& geometry);

/// The schedules of one batch on one rank and where their buffers lie.
class Batch {
 public:
  Batch(const AttentionPlan& plan, const Documents& documents, int rank);
  /// Of a geometry and its schedule, made once for all ranks.
  Batch(std::shared_ptr<const TokenMap> geometry, const CompactSchedule& compact, int rank);

  [[nodiscard]] const TokenMap& geometry() const { return *geometry_; }
  [[nodiscard]] const AttentionPlan& plan() const { return geometry_->plan(); }
  [[nodiscard]] const RankSchedule& schedule(Pass pass) const { return part(pass).schedule; }
  [[nodiscard]] i64 workspace_bytes(Pass pass) const { return part(pass).workspace.bytes; }
  /// What forward keeps for backward: row buffers that outlive the pass.
  [[nodiscard]] i64 saved_bytes() const { return saved_bytes_; }
  /// Results whose sum has another type than the caller's tensor.
  [[nodiscard]] i64 sums_bytes() const { return sums_bytes_; }

  /// The buffer of a name that exists when the pass begins, or that is its result; -1: none.
  [[nodiscard]] BufferId input(Pass pass, BufferName name) const;
  [[nodiscard]] BufferId result(Pass pass, BufferName name) const;
  /// Places the buffers that lie in memory of the operator's own.
  void place_own(Pass pass, PassRunner& runner, std::byte* workspace, std::byte* saved) const;
  /// A packed view of a buffer.
  [[nodiscard]] View packed(const Buffer& buffer, std::byte* at) const;
  /// Offset of a result's sum in the memory for sums.
  [[nodiscard]] i64 sum_offset(Tensor tensor) const { return sum_offset_[static_cast<std::size_t>(tensor)]; }
  /// Global tokens of a buffer's rows.
  [[nodiscard]] std::vector<i64> tokens(Pass pass, const Buffer& buffer, Side side) const;

 private:
  Batch(const std::shared_ptr<const TokenMap>& geometry, int rank);
  struct Part {
    RankSchedule schedule;
    Workspace workspace;
    std::vector<i64> saved_offset;  ///< per buffer; -1: not saved
  };
  [[nodiscard]] const Part& part(Pass pass) const { return parts_[pass == Pass::forward ? 0 : 1]; }
  void lay_out_saved();
  void lay_out_sums();

  std::shared_ptr<const TokenMap> geometry_;
  std::array<Part, 2> parts_;
  i64 saved_bytes_ = 0;
  i64 sums_bytes_ = 0;
  std::array<i64, 10> sum_offset_{};
};

}  // namespace usp
