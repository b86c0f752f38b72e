// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/plan.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/plan_file.hpp"

#include <algorithm>

namespace usp {
namespace {

DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::fp16;
    case Precision::fp32:
      return DType::fp32;
  }
  throw InternalError("unknown precision");
}

/// A framework's kernels are no backend: they are priced as the calibration's own.
Backend backend_of(const PlanRequest& request, const AttentionPlan& plan) {
  if (request.library_kernels) return Backend{};
  return CardBackends(*request.cluster, *request.calibration).of_layer(plan, request.workload.training);
}

}  // namespace

Documents attention_documents(const Workload& workload, const LayerKind& kind) {
  if (kind.kind == LayerMixer::cross) return Documents::single(workload.seq, kind.cross_tokens);
  const i64 chunk = kind.kind == LayerMixer::chunked ? kind.window.value_or(workload.seq) : workload.seq;
  return workload.documents.empty() ? chunked_documents({workload.seq}, chunk)
                                    : chunked_documents(workload.documents, chunk);
}

AttentionPlan attention_plan(const PlanRequest& request, const Choice& choice, const LayerKind& kind) {
  const Workload& w = request.workload;
  AttentionPlan plan;
  const i64 query = kind.query_heads / choice.tensor(),
            kv = std::max<i64>(1, kind.kv_heads / choice.tensor());
  plan.shape = {workload_of(request, choice).rows_per_microbatch(),
                w.seq,
                kind.kind == LayerMixer::cross ? kind.cross_tokens : w.seq,
                static_cast<int>(query),
                static_cast<int>(kv),
                static_cast<int>(kind.head_dim_qk),
                static_cast<int>(kind.head_dim_v),
                dtype_of(w.dtype)};
  plan.mesh = choice.mesh;
  plan.method = choice.method;
  plan.layout = choice.layout;
  plan.dkv_return = choice.dkv_return;
  plan.head_chunks = choice.head_chunks;
  plan.gated = choice.gated;
  plan.gate_phases = choice.gate_phases;
  plan.sink = kind.sinks;
  plan.score.scale = kind.scale.value_or(0);
  plan.score.softcap = kind.softcap.value_or(0);
  plan.score.alibi = kind.alibi;
  plan.backend = backend_of(request, plan);
  if (kind.kind == LayerMixer::cross) return plan;
  if (w.causal) plan.band.diff_min = 0;
  const i64 longest = longest_document(w.documents, w.seq);
  // A window over the whole of every document masks nothing, and neither does a choice of more keys.
  const bool window = kind.kind == LayerMixer::sliding && kind.window.value_or(longest) < longest;
  if (window) {
    plan.band.diff_max = *kind.window - 1;
    if (!w.causal) plan.band.diff_min = 1 - *kind.window;
  }
  // As many pairs as the chosen keys make; no rank knows which they will be, so all keys are exchanged.
  if (kind.sparse && kind.sparse->topk < longest) plan.band.diff_max = kind.sparse->topk - 1;
  plan.prune = window || !w.documents.empty() || kind.kind == LayerMixer::chunked;
  plan.split_own_block = schedule::splits_own_block(plan);
  return plan;
}

}  // namespace usp
