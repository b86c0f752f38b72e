// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/kernels/attention_args.hpp"
#include "usp/kernels/step_form.hpp"

namespace usp::kernels {
namespace {

template <class V>
void check_heads(const V& view, Range heads, const char* what) {
  expects(view.heads.begin <= heads.begin && heads.end <= view.heads.end, what);
}

void check_scope(const AttendScope& scope, const ConstView& q, const ConstView& k, const ConstView& v) {
  expects(scope.group >= 1 && scope.terms != nullptr, "an attention call has no group or terms");
  expects(q.type == k.type && k.type == v.type, "q, k and v differ in type");
  expects(q.width == k.width && k.rows == v.rows && q.batch == k.batch && k.batch == v.batch,
          "q, k and v do not fit together");
  if (scope.query_heads.empty()) return;
  check_heads(q, scope.query_heads, "q lacks query heads of the call");
  check_heads(k, scope.kv_heads(), "k lacks KV heads of the call");
  check_heads(v, scope.kv_heads(), "v lacks KV heads of the call");
  for (i64 i = 0; i < scope.slice_count; ++i) {
    const schedule::Slice& s = scope.slices[i];
    expects(s.q_row >= 0 && s.q_count >= 0 && s.q_row + s.q_count <= q.rows,
            "a slice names queries that q lacks");
    expects(s.k_row >= 0 && s.k_count >= 0 && s.k_row + s.k_count <= k.rows,
            "a slice names keys that k lacks");
  }
}

template <class V>
void check_state(const V& view, const ConstView& q, i64 rows, i64 width, const char* what) {
  expects(view.type == accumulator_of(q.type) && view.batch == q.batch && view.rows == rows &&
              view.width == width,
          what);
}

/// The same for a result that may be written in the input type.
void check_result(View view, const ConstView& q, bool may_round, i64 rows, i64 width, const char* what) {
  if (may_round && view.type == q.type) view.type = accumulator_of(q.type);
  check_state(view, q, rows, width, what);
}

/// A fault names a block of a list in 16 bits.
void check_count(i64 blocks) {
  expects(blocks > 0, "a list of blocks is empty");
  expects(blocks <= 0xffff, "a list has more blocks than a fault can name");
}
[[nodiscard]] bool is_same(const ConstView& a, const ConstView& b) {
  return a.data == b.data && ViewForm(a) == ViewForm(b);
}
[[nodiscard]] bool is_same(const AttendScope& a, const AttendScope& b) {
  AttendScope like_a = b;
  like_a.slice_count = a.slice_count;
  return a.terms == b.terms && ScopeForm(a) == ScopeForm(like_a);
}

}  // namespace

void check(const AttendArgs& a, bool rounds_results) {
  check_scope(a.scope, a.q, a.k, a.v);
  check_result(a.o, a.q, a.overwrite && rounds_results, a.q.rows, a.v.width, "o does not fit q and v");
  check_state(a.lse, a.q, a.q.rows, 1, "lse does not fit q");
  check_heads(a.o, a.scope.query_heads, "o lacks query heads of the call");
  check_heads(a.lse, a.scope.query_heads, "lse lacks query heads of the call");
}

void check(const DeltaArgs& a) {
  expects(a.d_o.rows == a.o.rows && a.d_o.width == a.o.width && a.d_o.batch == a.o.batch,
          "d_o does not fit o");
  expects(a.delta.rows == a.o.rows && a.delta.width == 1 && a.delta.batch == a.o.batch,
          "delta does not fit o");
  expects(a.lse.rows == a.o.rows && a.lse.width == 1 && a.lse.batch == a.o.batch, "lse does not fit o");
  expects((a.sink == nullptr) == (a.d_sink == nullptr), "a sink needs a place for its gradient");
  check_heads(a.d_o, a.query_heads, "d_o lacks query heads of the call");
  check_heads(a.o, a.query_heads, "o lacks query heads of the call");
  check_heads(a.lse, a.query_heads, "lse lacks query heads of the call");
  check_heads(a.delta, a.query_heads, "delta lacks query heads of the call");
}

void check(const AttendGradArgs& a, bool rounds_results) {
  check_scope(a.scope, a.q, a.k, a.v);
  const DType io = a.q.type;
  const bool may_round = a.overwrite && rounds_results;
  const auto like_o = [&](const ConstView& view) {
    return (view.type == io || view.type == accumulator_of(io)) && view.batch == a.q.batch &&
           view.rows == a.q.rows && view.width == a.v.width;
  };
  expects(like_o(a.d_o), "d_o does not fit q and v");
  check_state(a.lse, a.q, a.q.rows, 1, "lse does not fit q");
  if (a.delta.data != nullptr || a.o.data == nullptr)
    check_state(a.delta, a.q, a.q.rows, 1, "delta does not fit q");
  expects(a.o.data == nullptr || like_o(a.o), "o does not fit q and v");
  check_result(a.dq, a.q, may_round, a.q.rows, a.q.width, "dq does not fit q");
  check_result(a.dk, a.q, may_round, a.dk.rows, a.k.width, "dk does not fit k");
  check_result(a.dv, a.q, may_round, a.dk.rows, a.v.width, "dv does not fit v");
  if (a.scope.query_heads.empty()) return;
  if (a.o.data != nullptr) check_heads(a.o, a.scope.query_heads, "o lacks query heads of the call");
  check_heads(a.dq, a.scope.query_heads, "dq lacks query heads of the call");
  check_heads(a.dk, a.scope.kv_heads(), "dk lacks KV heads of the call");
  check_heads(a.dv, a.scope.kv_heads(), "dv lacks KV heads of the call");
  for (i64 i = 0; i < a.scope.slice_count; ++i) {
    const schedule::Slice& s = a.scope.slices[i];
    expects(s.dk_row >= 0 && s.dk_row + s.k_count <= a.dk.rows, "a slice names keys that dk lacks");
  }
}

void check(const AttendBlocks& list, bool rounds_results) {
  check_count(list.count);
  expects(list.completions == nullptr, "blocks of forward have no gradients to complete");
  const AttendArgs& first = list.front();
  for (const AttendArgs& a : list) {
    expects(is_same(a.q, first.q) && is_same(a.o, first.o) && is_same(a.lse, first.lse) &&
                is_same(a.scope, first.scope),
            "blocks of a list differ in what they share");
    expects(&a == &first || (!a.overwrite && a.sink == nullptr), "a later block overwrites the state");
    AttendArgs whole = a;
    whole.overwrite = first.overwrite;
    check(whole, rounds_results);
  }
}

void check(const AttendGradBlocks& list, bool rounds_results) {
  check_count(list.count);
  expects(list.completions == nullptr || list.gates == nullptr || list.watch.fault != nullptr,
          "completions of blocks behind gates need a word that says whether a wait was given up");
  const AttendGradArgs& first = list.front();
  for (const AttendGradArgs& a : list) {
    expects(is_same(a.q, first.q) && is_same(a.d_o, first.d_o) && is_same(a.lse, first.lse) &&
                is_same(a.delta, first.delta) && is_same(a.dq, first.dq) && is_same(a.o, first.o) &&
                is_same(a.scope, first.scope),
            "blocks of a list differ in what they share");
    expects(&a == &first || !a.overwrite, "a later block overwrites dq");
    AttendGradArgs whole = a;
    if (first.overwrite && rounds_results) whole.dq.type = accumulator_of(a.q.type);
    check(whole, rounds_results);
  }
}

}  // namespace usp::kernels
