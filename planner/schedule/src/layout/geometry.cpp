// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/geometry.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace usp::schedule {
namespace {

[[noreturn]] void refuse(const char* token, const std::string& problem) {
  throw InvalidInput({"documents", 0, token}, problem);
}

void check_borders(const std::vector<i64>& cu, i64 tokens, std::size_t documents, bool sorted,
                   const char* name) {
  if (cu.size() != documents + 1) refuse(name, "needs one entry more than there are documents");
  if (cu.front() != 0 || cu.back() != tokens)
    refuse(name, fmt::format("must run from 0 to {} tokens, the length of the plan", tokens));
  if (!sorted && !std::is_sorted(cu.begin(), cu.end())) refuse(name, "must not decrease");
}

const AttentionPlan& checked(const AttentionPlan& plan) {
  check_plan_sizes(plan);
  return plan;
}

}  // namespace

TokenMap::TokenMap(const AttentionPlan& plan, const Documents& documents)
    : TokenMap(plan,
               std::make_shared<const MaskedBatch>(std::make_shared<const Documents>(documents), plan.band)) {
}

TokenMap::TokenMap(const AttentionPlan& plan, std::shared_ptr<const MaskedBatch> batch)
    : plan_(checked(plan)),
      batch_(std::move(batch)),
      heads_(plan.shape.query_heads, plan.shape.kv_heads, plan.mesh.ulysses, plan.head_chunks) {
  check_documents();
  const int ring = plan.mesh.ring(), ulysses = plan.mesh.ulysses;
  layout_q_ = make_layout(plan.layout, plan.shape.q_tokens, ring, ulysses, documents().cu_q);
  layout_k_ = batch_->sums_documents()  // the same tokens in the same documents
                  ? layout_q_
                  : make_layout(plan.layout, plan.shape.kv_tokens, ring, ulysses, documents().cu_k);
  list_key_runs();
  place_replicated(Side::q);
  place_replicated(Side::k);
}

void TokenMap::check_documents() const {
  const Documents& all = documents();
  if (static_cast<i64>(all.count()) > max_documents)
    refuse("cu_seqlens", fmt::format("holds {} documents; the most are {}", all.count(), max_documents));
  const bool sorted = batch_->sums_documents();  // once for all geometries of the batch
  check_borders(all.cu_q, plan_.shape.q_tokens, all.count(), sorted, "cu_seqlens of the queries");
  check_borders(all.cu_k, plan_.shape.kv_tokens, all.count(), sorted, "cu_seqlens of the keys");
  if (sorted) return;  // such a batch has no shifts
  for (std::size_t i = 0; i < all.count(); ++i) {
    const i64 shift = all.shift[i];
    if (shift < -max_tokens || shift > max_tokens || all.cu_q[i] + shift - all.cu_k[i + 1] < -unbounded ||
        all.cu_q[i + 1] + shift - all.cu_k[i] > unbounded)
      refuse("shift", fmt::format("{} of document {} puts its queries more than {} positions from its keys, "
                                  "where no mask reaches",
                                  shift, i, unbounded));
  }
}

void TokenMap::place_replicated(Side side) {
  const SequenceLayout& where = layout(side);
  auto& rows = side == Side::q ? replicated_q_ : replicated_k_;
  auto& pieces = side == Side::q ? pieces_q_ : pieces_k_;
  rows.resize(static_cast<std::size_t>(where.ring()));
  std::vector<std::tuple<i64, int, Range>> found;
  for (const Range& tokens : side == Side::q ? plan_.replicated_q : plan_.replicated_k)
    for (int r = 0; r < where.ring(); ++r)
      for (const Run& run : where.row(r)) {
        const i64 begin =
            std::clamp<i64>(slice_detail::ceil_div(tokens.begin - run.first, run.step), 0, run.count);
        const i64 end =
            std::clamp<i64>(slice_detail::ceil_div(tokens.end - run.first, run.step), begin, run.count);
        if (begin == end) continue;
        rows[static_cast<std::size_t>(r)].push_back({run.slot + begin, run.slot + end});
        const i64 piece = run.step == 1 ? end - begin : 1;  // tokens of other rows stand between
        for (i64 i = begin; i < end; i += piece)
          found.emplace_back(run.first + i * run.step, r, Range{run.slot + i, run.slot + i + piece});
      }
  for (auto& set : rows) normalize(set);
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
  for (const auto& [token, r, slots] : found) pieces.push_back({r, {slots}});
}

const Intervals& TokenMap::replicated(Side side, int ring_row) const {
  return (side == Side::q ? replicated_q_ : replicated_k_)[static_cast<std::size_t>(ring_row)];
}

const std::vector<Selection>& TokenMap::replicated_pieces(Side side) const {
  return side == Side::q ? pieces_q_ : pieces_k_;
}

int TokenMap::offset_between(int from, int to) const {
  const int inner = mesh().ring_inner, outer = mesh().ring_outer;
  return (to / inner - from / inner + outer) % outer * inner + (to % inner - from % inner + inner) % inner;
}

Intervals TokenMap::need(int r, int j) const {
  const int delta = offset_between(j, r);
  return needed(j, {static_cast<std::int16_t>(delta), static_cast<std::int16_t>(delta + 1)});
}

Intervals TokenMap::needed(int j, RingOffsets offsets) const {
  Intervals slots;
  if (!plan_.prune) {
    if (layout_k_.row_size(j) > 0) slots.push_back({0, layout_k_.row_size(j)});
    return slots;
  }
  fill_needs();
  const auto row = static_cast<std::size_t>(j);
  if (offsets.count() > 1) {
    for (std::size_t i = need_run_begin_[row]; i < need_run_begin_[row + 1]; ++i)
      if (need_runs_[i].begin < offsets.end && offsets.begin < need_runs_[i].end)
        slots.push_back(need_runs_[i].slots);
    normalize(slots);
    return slots;
  }
  const auto begin = needs_.begin() + static_cast<std::ptrdiff_t>(need_begin_[row]),
             end = needs_.begin() + static_cast<std::ptrdiff_t>(need_begin_[row + 1]);
  auto at =
      std::lower_bound(begin, end, offsets.begin, [](const Need& n, int delta) { return n.delta < delta; });
  for (; at != end && at->delta < offsets.end; ++at) slots.push_back(at->slots);
  return slots;
}

void TokenMap::filter(Selection& selection, const TokenSelect& select, int source, int target) const {
  const int j = selection.ring_row;
  if (select.of == Side::k && plan_.prune) {
    const bool whole = select.block == Block::row && !selection.slots.empty();
    if (select.needed.any())
      selection.slots =
          whole ? needed(j, select.needed) : intersect(selection.slots, needed(j, select.needed));
    if (select.needed_by != Endpoint::none) {
      const Intervals seen = need(mesh().ring_of(select.needed_by == Endpoint::target ? target : source), j);
      selection.slots = whole && !select.needed.any() ? seen : intersect(selection.slots, seen);
    }
    if (select.also.any()) selection.slots = intersect(selection.slots, needed(j, select.also));
  }
  if (select.not_needed.any())
    selection.slots = plan_.prune ? subtract(selection.slots, needed(j, select.not_needed)) : Intervals{};
  if (select.copies == TokenFilter::partitioned && !replicated(select.of, j).empty())
    selection.slots = subtract(selection.slots, replicated(select.of, j));
  if (select.copies == TokenFilter::replicated)
    selection.slots = intersect(selection.slots, replicated(select.of, j));
}

void TokenMap::tokens_of(const TokenSelect& select, int source, int target, Selection& out) const {
  const int rank = select.at == Endpoint::target ? target : source;
  const SequenceLayout& where = layout(select.of);
  out.slots.clear();
  if (select.block == Block::row) {
    out.ring_row = mesh().row_at(mesh().ring_of(rank), select.shift);
    out.slots.push_back({0, where.row_size(out.ring_row)});
  } else {
    out.ring_row = mesh().ring_of(rank);
    out.slots.push_back(where.home(out.ring_row, mesh().ulysses_of(rank)));
  }
  if (out.slots.front().empty()) out.slots.clear();
  filter(out, select, source, target);
}

std::size_t TokenMap::CountKeyHash::operator()(const CountKey& key) const {
  Digest digest;
  digest.add(key.of).add(key.copies);
  for (RingOffsets d : {key.needed, key.also, key.not_needed}) digest.add(d.begin).add(d.end);
  return digest.value();
}

const std::vector<i64>& TokenMap::counts_by_row(const TokenSelect& select) const {
  expects(select.block == Block::row && select.needed_by == Endpoint::none,
          "tokens of a row that depend on the receiver have no one count");
  CountKey key{select.of, select.copies, select.needed, select.also, select.not_needed};
  if (!plan_.prune) {  // every block is needed whole: which offsets need it makes no difference
    key.needed = key.also = {};
    if (key.not_needed.any()) key.not_needed = {0, 1};
  }
  const auto [known, fresh] = row_counts_.try_emplace(key);
  if (!fresh) return known->second;
  TokenSelect own = select;
  own.shift = {};
  for (int r = 0; r < mesh().ring(); ++r)
    known->second.push_back(count_of(own, mesh().rank(r, 0), mesh().rank(r, 0)));
  return known->second;
}

i64 TokenMap::count_of(const TokenSelect& select, int source, int target) const {
  Selection selection;
  tokens_of(select, source, target, selection);
  return total(selection.slots);
}

Range TokenMap::heads_of(HeadSelect select, int source, int target) const {
  const int u = mesh().ulysses_of(select.at == Endpoint::target ? target : source);
  switch (select.kind) {
    case HeadKind::query:
      return select.chunk >= 0 ? heads_.query_of(u, select.chunk) : heads_.query_of(u);
    case HeadKind::kv:
      return select.chunk >= 0 ? heads_.kv_of(u, select.chunk) : heads_.kv_of(u);
    case HeadKind::kv_new:
      return heads_.kv_new(u, select.chunk);
    case HeadKind::kv_last:
      return heads_.kv_last(u, select.chunk);
    case HeadKind::all_query:
      return {0, heads_.query()};
    case HeadKind::all_kv:
      return {0, heads_.kv()};
  }
  throw InternalError("unknown head selector");
}

void TokenMap::targets(const TransferOp& move, int rank, std::vector<int>& out) const {
  out.clear();
  const int r = mesh().ring_of(rank), u = mesh().ulysses_of(rank);
  switch (move.peers) {
    case Peers::self:
      out.push_back(rank);
      break;
    case Peers::shift:
      out.push_back(mesh().rank(mesh().row_at(r, move.shift), u));
      break;
    case Peers::every_ulysses:
      for (int x = 0; x < mesh().ulysses; ++x) out.push_back(mesh().rank(r, x));
      break;
    case Peers::every_ring:
      for (int x = 0; x < mesh().ring(); ++x)
        if (x != r) out.push_back(mesh().rank(x, u));
      break;
    case Peers::all_ranks:
      for (int x = 0; x < mesh().size(); ++x) out.push_back(x);
      break;
  }
}

void TokenMap::sources(const TransferOp& move, int rank, std::vector<int>& out) const {
  if (move.peers != Peers::shift) return targets(move, rank, out);
  out.assign(
      1, mesh().rank(mesh().row_at(mesh().ring_of(rank), Mesh::back(move.shift)), mesh().ulysses_of(rank)));
}

}  // namespace usp::schedule
