// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/attention.hpp"
#include "usp/schedule/compact.hpp"
#include "usp/schedule/heads.hpp"
#include "usp/schedule/layout.hpp"
#include "usp/schedule/slice.hpp"

#include <unordered_map>
#include <vector>

namespace usp {

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

/// What follows from a plan and a batch: who owns which tokens and heads, which pairs are visible, which keys
/// a row needs. Resolves the selectors of the compact form. Built once per batch, read by every rank; not
/// thread-safe while lazily filled.
class Geometry {
 public:
  /// Expects documents that fit the shape (checked). Throws InvalidInput on inconsistent documents.
  Geometry(const AttentionPlan& plan, const Documents& documents);

  [[nodiscard]] const AttentionPlan& plan() const { return plan_; }
  [[nodiscard]] const Mesh& mesh() const { return plan_.mesh; }
  [[nodiscard]] const Heads& heads() const { return heads_; }
  [[nodiscard]] const Documents& documents() const { return documents_; }
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
  /// Slots of key row j that query row r sees.
  [[nodiscard]] Intervals need(int r, int j) const;

  /// Ranks that a move of `rank` goes to, or comes from; in the order in which messages are posted.
  void targets(const Move& move, int rank, std::vector<int>& out) const;
  void sources(const Move& move, int rank, std::vector<int>& out) const;

 private:
  /// A run cut at document borders.
  struct DocumentRun {
    std::int32_t document = 0;
    std::int32_t ring_row = 0;
    Run run;
  };
  struct Need {
    std::int32_t key_row = 0;
    std::int32_t delta = 0;  ///< ring offset from the key row to the query row
    Range slots;
  };
  struct Cut {
    std::vector<DocumentRun> runs;  ///< by row, then slot
    std::vector<std::size_t> row_begin;
  };

  void check_documents() const;
  [[nodiscard]] Cut cut_at_documents(const SequenceLayout& layout, const std::vector<i64>& cu_seqlens) const;
  void index_keys_by_document();
  void place_replicated(Side side);
  void pair(const DocumentRun& q, std::vector<RowSlice>& out) const;
  void pair_runs(const Run& q, i64 shift, const DocumentRun& k, std::vector<RowSlice>& out) const;
  void fill_needs() const;
  void join_needs() const;
  [[nodiscard]] int offset_between(int from, int to) const;
  [[nodiscard]] Intervals needed(int j, Deltas deltas) const;
  void filter(Selection& selection, const TokenSelect& select, int source, int target) const;

  AttentionPlan plan_;
  Documents documents_;
  Heads heads_;
  SequenceLayout layout_q_;
  SequenceLayout layout_k_;
  std::vector<Intervals> replicated_q_, replicated_k_;
  std::vector<Selection> pieces_q_, pieces_k_;
  Cut cut_q_, cut_k_;
  std::vector<std::int32_t> keys_by_document_;  ///< indices into cut_k_.runs
  std::vector<std::size_t> document_begin_;
  mutable int sliced_row_ = -1;
  mutable std::vector<RowSlice> row_slices_;
  struct CountKey {
    Side of;
    Copies copies;
    Deltas needed, also, not_needed;
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
};

}  // namespace usp
