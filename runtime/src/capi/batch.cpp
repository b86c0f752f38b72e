// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"
#include "tensors.hpp"

#include "usp/runtime/shard.hpp"

using usp::capi::given;
using usp::capi::guarded;

namespace {

constexpr std::size_t first_sizes =
    offsetof(usp_batch_sizes, backward_reads_out) + sizeof(usp_batch_sizes::backward_reads_out);

std::shared_ptr<const usp::Prepared> prepared_of(const usp_batch* batch, const usp_plan* plan) {
  return given(batch, "batch").batch->prepare(given(plan, "plan").layer);
}

usp_status tokens(const usp_batch* batch, const usp_plan* plan, bool queries, const int64_t** ids,
                  int64_t* count) {
  return guarded([&] {
    const auto prepared = prepared_of(batch, plan);
    const std::vector<usp::i64>& list = queries ? prepared->q_tokens() : prepared->kv_tokens();
    if (ids != nullptr) *ids = list.data();
    if (count != nullptr) *count = static_cast<int64_t>(list.size());
  });
}

constexpr std::size_t first_layout =
    offsetof(usp_layout_desc, documents) + sizeof(usp_layout_desc::documents);

usp_layout_desc layout_defaults() {
  auto layout = usp::capi::zero<usp_layout_desc>();
  layout.kind = USP_ZIGZAG;
  layout.ring = layout.ulysses = 1;
  return layout;
}

std::vector<usp::Run> runs_of(const usp_layout_desc* given_layout, std::int32_t rank) {
  const usp_layout_desc own = usp::capi::taken(given_layout, first_layout, layout_defaults(), "layout");
  usp::capi::require(own.reserved == 0, "layout.reserved must be 0");
  const bool single = own.cu_seqlens == nullptr && own.documents == 0;
  const std::vector<usp::i64> borders =
      single ? std::vector<usp::i64>{0, own.tokens} : usp::capi::self_borders(own.cu_seqlens, own.documents);
  return usp::layout_runs(usp::capi::enumerator(own.kind, usp::LayoutKind::balanced, "layout.kind"),
                          own.tokens, {.ring_inner = own.ring, .ulysses = own.ulysses}, rank, borders);
}

}  // namespace

usp_status usp_batch_create(usp_engine* engine, const int64_t* cu_seqlens, int64_t documents,
                            uint64_t dropout_seed, usp_batch** batch) {
  return guarded([&] {
    usp_engine& handle = given(engine, "engine");
    given(batch, "batch");
    const usp::Documents list = usp::Documents::packed(usp::capi::self_borders(cu_seqlens, documents));
    *batch = new usp_batch{handle.batches.get(list, dropout_seed), dropout_seed, handle.forward_only};
  });
}

usp_status usp_batch_create_cross(usp_engine* engine, const int64_t* cu_q, const int64_t* cu_k,
                                  const int64_t* shift, int64_t documents, uint64_t dropout_seed,
                                  usp_batch** batch) {
  return guarded([&] {
    usp_engine& handle = given(engine, "engine");
    given(batch, "batch");
    const usp::Documents list = usp::capi::cross_documents(cu_q, cu_k, shift, documents);
    *batch = new usp_batch{handle.batches.get(list, dropout_seed), dropout_seed, handle.forward_only};
  });
}

usp_status usp_batch_derive(const usp_batch* of, const int64_t* cu_seqlens, int64_t documents,
                            usp_batch** batch) {
  return guarded([&] {
    const usp_batch& whole = given(of, "of");
    given(batch, "batch");
    const usp::Documents parts = usp::Documents::packed(usp::capi::self_borders(cu_seqlens, documents));
    *batch = new usp_batch{whole.batch->derive(parts), whole.dropout_seed, whole.forward_only};
  });
}

void usp_batch_destroy(usp_batch* batch) {
  delete batch;
}

usp_status usp_layout_desc_init(usp_layout_desc* layout, size_t size) {
  return guarded([&] { usp::capi::start(layout, size, first_layout, layout_defaults(), "layout"); });
}

usp_status usp_layout_tokens(const usp_layout_desc* layout, int32_t rank, int64_t* list, int64_t room,
                             int64_t* count) {
  return guarded([&] {
    given(count, "count");
    usp::capi::require(room >= 0 && (list != nullptr || room == 0),
                       "list is null or room negative; give the memory of room tokens, or room 0");
    usp::i64 rows = 0;
    for (const usp::Run& run : runs_of(layout, rank)) {
      for (usp::i64 n = 0; n < run.count && rows + n < room; ++n) list[rows + n] = run.first + n * run.step;
      rows += run.count;
    }
    *count = rows;
  });
}

usp_status usp_batch_get_sizes(const usp_batch* batch, const usp_plan* plan, usp_batch_sizes* sizes) {
  return guarded([&] {
    const auto prepared = prepared_of(batch, plan);
    auto own = usp::capi::zero<usp_batch_sizes>();
    own.q_rows = static_cast<int64_t>(prepared->q_tokens().size());
    own.kv_rows = static_cast<int64_t>(prepared->kv_tokens().size());
    own.saved_bytes = prepared->saved_bytes();
    own.workspace_bytes = batch->forward_only ? prepared->workspace_bytes(usp::Pass::forward)
                                              : prepared->workspace_bytes() + prepared->sums_bytes();
    own.backward_reads_q = prepared->backward_reads(usp::Tensor::q) ? 1 : 0;
    own.backward_reads_k = prepared->backward_reads(usp::Tensor::k) ? 1 : 0;
    own.backward_reads_v = prepared->backward_reads(usp::Tensor::v) ? 1 : 0;
    own.backward_reads_out = prepared->backward_reads(usp::Tensor::o) ? 1 : 0;
    usp::capi::put(own, first_sizes, sizes, "sizes");
  });
}

usp_status usp_batch_q_tokens(const usp_batch* batch, const usp_plan* plan, const int64_t** ids,
                              int64_t* count) {
  return tokens(batch, plan, true, ids, count);
}

usp_status usp_batch_kv_tokens(const usp_batch* batch, const usp_plan* plan, const int64_t** ids,
                               int64_t* count) {
  return tokens(batch, plan, false, ids, count);
}
