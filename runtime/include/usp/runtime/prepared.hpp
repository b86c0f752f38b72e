// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"
#include "usp/schedule/expand.hpp"
#include "usp/schedule/plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace usp {

/// The schedule of all ranks in compact form.
[[nodiscard]] schedule::CompactSchedule schedule_of(const schedule::TokenMap& geometry);

/// An attention call that is ready to run on one rank: the schedules of both passes of one plan on one batch,
/// and where their buffers lie in workspace and saved state. Immutable: all layers of a model with the same
/// plan share one, and any thread may make or read one. Making one is local and communicates nothing.
class Prepared {
 public:
  /// Documents whose tokens do not exceed the plan's (its capacity). Throws InvalidInput where they do, and
  /// for a plan out of range.
  /// `reach`, the same on all ranks: what peers copy from and into (DataPlane::reach).
  Prepared(const AttentionPlan& plan, const Documents& documents, int rank,
           schedule::PeerReach reach = schedule::PeerReach::all);
  /// Of a geometry and its schedule, made once for all ranks.
  Prepared(std::shared_ptr<const schedule::TokenMap> geometry, const schedule::CompactSchedule& compact,
           int rank, schedule::PeerReach reach = schedule::PeerReach::all);

  [[nodiscard]] const schedule::TokenMap& geometry() const { return *geometry_; }
  /// The plan with the batch's counts of tokens.
  [[nodiscard]] const AttentionPlan& plan() const { return geometry_->plan(); }
  /// Digest of the plan it was made of (its capacity, not the batch's counts).
  [[nodiscard]] std::uint64_t plan_key() const { return plan_key_; }
  /// Digest of that and the documents.
  [[nodiscard]] std::uint64_t call_key() const { return call_key_; }
  [[nodiscard]] schedule::PeerReach reach() const { return reach_; }
  [[nodiscard]] int rank() const { return parts_[0].schedule.rank; }
  [[nodiscard]] const schedule::RankSchedule& schedule(Pass pass) const { return part(pass).schedule; }

  /// Global tokens of the home rows, in order.
  [[nodiscard]] const std::vector<i64>& q_tokens() const { return q_tokens_; }
  [[nodiscard]] const std::vector<i64>& kv_tokens() const { return kv_tokens_; }

  /// Scratch of a pass, and of both, the greatest of each part: free again when the pass has ended.
  [[nodiscard]] i64 workspace_bytes(Pass pass) const {
    return part(pass).reached.bytes + part(pass).own.bytes;
  }
  [[nodiscard]] i64 workspace_bytes() const;
  /// Its parts: what peers copy from and into, where they reach the workspace alone (else 0), and the rest.
  [[nodiscard]] i64 reached_bytes(Pass pass) const { return part(pass).reached.bytes; }
  [[nodiscard]] i64 own_bytes(Pass pass) const { return part(pass).own.bytes; }
  /// Forward's state that backward reads: row buffers that outlive the pass. One per forward in flight.
  [[nodiscard]] i64 saved_bytes() const { return saved_bytes_; }
  /// Sums of gradients whose type is not the input's, in which the caller takes them: scratch of backward.
  [[nodiscard]] i64 sums_bytes() const { return sums_bytes_; }
  /// Whether backward reads a home tensor of forward's: q, k, v (not where the exchanged ones are saved) and
  /// o. Memory of the others may be freed after forward.
  [[nodiscard]] bool backward_reads(Tensor tensor) const;

  /// The buffer of a name that exists when the pass begins, or that is its result; -1: none.
  [[nodiscard]] schedule::BufferId input(Pass pass, BufferName name) const;
  [[nodiscard]] schedule::BufferId result(Pass pass, BufferName name) const;
  /// Offset of a buffer in the saved state and in a part of the workspace; -1: not in there.
  [[nodiscard]] i64 saved_offset(Pass pass, schedule::BufferId id) const;
  [[nodiscard]] i64 reached_offset(Pass pass, schedule::BufferId id) const;
  [[nodiscard]] i64 own_offset(Pass pass, schedule::BufferId id) const;
  /// A packed view of a buffer.
  [[nodiscard]] kernels::View packed(const schedule::Buffer& buffer, std::byte* at) const;
  /// Global tokens of a buffer's rows.
  [[nodiscard]] std::vector<i64> tokens(Pass pass, const schedule::Buffer& buffer, schedule::Side side) const;

 private:
  struct Part {
    schedule::RankSchedule schedule;
    schedule::Workspace reached, own;
    std::vector<i64> saved_offset;  ///< per buffer; -1: not saved
  };
  [[nodiscard]] const Part& part(Pass pass) const { return parts_[pass == Pass::forward ? 0 : 1]; }
  void expand_passes(const schedule::CompactSchedule& compact, int rank);
  void set_keys(const AttentionPlan& plan);
  void lay_out_saved();
  void count_sums();
  [[nodiscard]] std::vector<i64> home_tokens(Tensor tensor, schedule::Side side) const;

  std::shared_ptr<const schedule::TokenMap> geometry_;
  std::uint64_t plan_key_ = 0, call_key_ = 0;
  schedule::PeerReach reach_;
  std::array<Part, 2> parts_;
  i64 saved_bytes_ = 0;
  i64 sums_bytes_ = 0;
  std::vector<i64> q_tokens_, kv_tokens_;
};

}  // namespace usp
