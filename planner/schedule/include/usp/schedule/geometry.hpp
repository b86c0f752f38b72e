// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/heads.hpp"
#include "usp/schedule/layout.hpp"
#include "usp/schedule/masked_batch.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/slice.hpp"

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace usp::schedule {

/// Sorted, disjoint, non-touching slot ranges.
using Intervals = std::vector<Range>;

[[nodiscard]] i64 total(const Intervals& set);
void normalize(Intervals& set);  ///< sorts and joins, any order in
[[nodiscard]] Intervals intersect(const Intervals& a, const Intervals& b);
[[nodiscard]] Intervals subtract(const Intervals& a, const Intervals& b);

/// Tokens of one ring row.
struct Selection {
  int ring_row = 0;
  Intervals slots;
};

/// A slice and the key row it belongs to; rows of the slice are slots of the two ring rows.
struct RowSlice {
  int key_row = 0;
  Slice slice;
};

/// Something that one query row has to do: its rows against keys of one key row, `area` visible pairs. One
/// slice, or documents that lie whole inside both.
struct RowPart {
  int key_row = 0;
  Range queries, keys;  ///< slots that see and that are seen
  i128 area = 0;
};

/// Derived from a plan and a batch: owners of tokens and heads, visible pairs, and the keys that a query row
/// needs. Resolves the selectors of the compact form. Built once per batch, read by every rank; not
/// thread-safe while lazily filled.
class TokenMap {
 public:
  /// Expects documents that fit the shape (checked). Throws InvalidInput on inconsistent documents.
  TokenMap(const AttentionPlan& plan, const Documents& documents);
  /// @param batch made with the plan's band; geometries may share it
  TokenMap(const AttentionPlan& plan, std::shared_ptr<const MaskedBatch> batch);

  [[nodiscard]] const AttentionPlan& plan() const { return plan_; }
  [[nodiscard]] const Mesh& mesh() const { return plan_.mesh; }
  [[nodiscard]] const Heads& heads() const { return heads_; }
  [[nodiscard]] const Documents& documents() const { return batch_->documents(); }
  [[nodiscard]] const SequenceLayout& layout(Side side) const {
    return side == Side::q ? layout_q_ : layout_k_;
  }
  [[nodiscard]] const Intervals& replicated(Side side, int ring_row) const;
  /// The replicated tokens of a side in ascending order, as (ring row, slots) pieces.
  [[nodiscard]] const std::vector<Selection>& replicated_pieces(Side side) const;

  [[nodiscard]] Range heads_of(HeadSelect select, int source, int target) const;
  void tokens_of(const TokenSelect& select, int source, int target, Selection& out) const;
  /// Tokens per block (by its ring row) of a selector of whole rows that no single receiver filters;
  /// remembered.
  [[nodiscard]] const std::vector<i64>& counts_by_row(const TokenSelect& select) const;
  /// Number of tokens only.
  [[nodiscard]] i64 count_of(const TokenSelect& select, int source, int target) const;

  /// Visible slices of query row r, grouped by key row, in ascending query and key order.
  [[nodiscard]] const std::vector<RowSlice>& slices_of_row(int r) const;
  /// The same against one key row, appended to `out`.
  void slices_between(int r, int key_row, std::vector<RowSlice>& out) const;
  /// What the slices of query row r add up to. Keeps nothing, and takes a run of whole documents at once, so
  /// that its work grows with the documents that the layout cuts only.
  void visit_row(int r, const std::function<void(const RowPart&)>& each) const;
  /// Slots of key row j that query row r sees.
  [[nodiscard]] Intervals need(int r, int j) const;

  /// Ranks that a move of `rank` goes to, or comes from; in the order in which messages are posted.
  void targets(const TransferOp& move, int rank, std::vector<int>& out) const;
  void sources(const TransferOp& move, int rank, std::vector<int>& out) const;

 private:
  /// Consecutive tokens of one ring row.
  struct RowRun {
    std::int32_t ring_row = 0;
    Run run;
  };
  struct Need {
    std::int32_t key_row = 0;
    std::int32_t delta = 0;  ///< ring offset from the key row to the query row
    Range slots;
  };
  /// Slots that query rows at consecutive offsets see alike.
  struct NeedRun {
    std::int32_t key_row = 0;
    std::int32_t begin = 0, end = 0;  ///< offsets
    Range slots;
  };
  void check_documents() const;
  void list_key_runs();
  void place_replicated(Side side);
  template <class Piece, class Whole>
  void walk_row(int r, bool sums, const Piece& piece, const Whole& whole) const;
  template <class Each>
  void visit_keys(Range document, Range seen, const Each& each) const;
  void pair(const Run& q, std::size_t document, std::vector<RowSlice>& out) const;
  void pair_with(const Run& q, i64 shift, const RowRun& k, std::vector<RowSlice>& out) const;
  void pair_runs(const Run& q, i64 shift, const RowRun& k, std::vector<RowSlice>& out) const;
  void fill_needs() const;
  void join_needs() const;
  void list_need_runs() const;
  [[nodiscard]] int offset_between(int from, int to) const;
  [[nodiscard]] Intervals needed(int j, RingOffsets offsets) const;
  void filter(Selection& selection, const TokenSelect& select, int source, int target) const;

  AttentionPlan plan_;
  std::shared_ptr<const MaskedBatch> batch_;
  Heads heads_;
  SequenceLayout layout_q_;
  SequenceLayout layout_k_;
  std::vector<Intervals> replicated_q_, replicated_k_;
  std::vector<Selection> pieces_q_, pieces_k_;
  std::vector<RowRun> key_runs_;  ///< by first token; of a striped layout, whose runs interleave, none
  mutable int sliced_row_ = -1;
  mutable std::vector<RowSlice> row_slices_;
  struct CountKey {
    Side of;
    TokenFilter copies;
    RingOffsets needed, also, not_needed;
    friend bool operator==(const CountKey& a, const CountKey& b) {
      return a.of == b.of && a.copies == b.copies && a.needed == b.needed && a.also == b.also &&
             a.not_needed == b.not_needed;
    }
  };
  struct CountKeyHash {
    std::size_t operator()(const CountKey& key) const;
  };
  mutable std::unordered_map<CountKey, std::vector<i64>, CountKeyHash> row_counts_;
  mutable bool needs_filled_ = false;
  mutable std::vector<Need> needs_;              ///< sorted by key row, offset, slot; joined
  mutable std::vector<std::size_t> need_begin_;  ///< per key row
  mutable std::vector<NeedRun> need_runs_;       ///< the same needs, grouped by key row
  mutable std::vector<std::size_t> need_run_begin_;
};

}  // namespace usp::schedule
