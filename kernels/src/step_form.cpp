// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/step_form.hpp"

#include "usp/base/error.hpp"

#include <cstdint>

namespace usp::kernels {
namespace {

[[nodiscard]] int alignment_of(const std::byte* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) & 15;
  if (data == nullptr) return 0;
  return address == 0 ? 16 : static_cast<int>(address & (~address + 1));
}

[[nodiscard]] const ScoreTerms& terms_of(const AttendScope& scope) {
  expects(scope.terms != nullptr, "an attention call has no terms");
  return *scope.terms;
}

}  // namespace

ViewForm::ViewForm(const ConstView& view)
    : type(view.type),
      alignment(alignment_of(view.data)),
      batch(view.batch),
      rows(view.rows),
      heads(view.heads),
      width(view.width),
      batch_stride(view.batch_stride),
      row_stride(view.row_stride),
      head_stride(view.head_stride) {}

ScopeForm::ScopeForm(const AttendScope& scope)
    : query_heads(scope.query_heads),
      group(scope.group),
      slice_count(scope.slice_count),
      use(scope.use),
      scale(terms_of(scope).scale),
      softcap(scope.terms->softcap),
      dropout(scope.terms->dropout),
      alibi(scope.terms->alibi_slopes != nullptr),
      block_mask(scope.terms->blocks != nullptr),
      block_q(block_mask ? scope.terms->blocks->block_q : 0),
      block_k(block_mask ? scope.terms->blocks->block_k : 0),
      block_rows(block_mask ? scope.terms->blocks->rows : 0),
      block_columns(block_mask ? scope.terms->blocks->columns : 0) {}

StepForm<AttendArgs>::StepForm(const AttendArgs& a)
    : q(a.q),
      k(a.k),
      v(a.v),
      o(a.o),
      lse(a.lse),
      scope(a.scope),
      overwrite(a.overwrite),
      sink(a.sink != nullptr) {}

StepForm<AttendGradArgs>::StepForm(const AttendGradArgs& a)
    : q(a.q),
      k(a.k),
      v(a.v),
      d_o(a.d_o),
      lse(a.lse),
      delta(a.delta),
      dq(a.dq),
      dk(a.dk),
      dv(a.dv),
      o(a.o),
      scope(a.scope),
      overwrite(a.overwrite),
      overwrite_dkv(a.overwrite_dkv) {}

void expect_fit(bool fits) {
  expects(fits, "a prepared step was given arguments of another form; prepare it anew");
}

}  // namespace usp::kernels
