// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

using usp::capi::given;
using usp::capi::guarded;
using usp::capi::require;

namespace usp::capi {
namespace {

constexpr std::size_t first_desc =
    offsetof(usp_attention_desc, replicated_k_count) + sizeof(usp_attention_desc::replicated_k_count);

usp_attention_desc defaults() {
  usp_attention_desc d{};
  d.size = sizeof d;
  d.batch = 1;
  d.dtype = -1;
  d.ring = d.ring_outer = d.ulysses = 1;
  d.method = USP_RING;
  d.layout = USP_ZIGZAG;
  d.dkv_return = USP_DKV_CIRCULATE;
  d.head_chunks = 1;
  d.save_exchanged_qkv = d.gate_phases = 1;
  d.diff_min = -USP_UNBOUNDED;
  d.diff_max = USP_UNBOUNDED;
  return d;
}

AttentionShape shape_of(const usp_attention_desc& d) {
  AttentionShape s;
  s.batch = d.batch;
  s.q_tokens = d.q_tokens;
  s.kv_tokens = d.kv_tokens == 0 ? d.q_tokens : d.kv_tokens;
  s.query_heads = d.query_heads;
  s.kv_heads = d.kv_heads == 0 ? d.query_heads : d.kv_heads;
  s.head_dim_qk = d.head_dim_qk;
  s.head_dim_v = d.head_dim_v == 0 ? d.head_dim_qk : d.head_dim_v;
  s.dtype = enumerator(d.dtype, DType::fp64, "dtype");
  return s;
}

Mesh mesh_of(const usp_attention_desc& d) {
  require(d.ring >= 1, fmt::format("ring is {}; it must be at least 1", d.ring));
  require(d.ring_outer >= 1 && d.ring % d.ring_outer == 0,
          fmt::format("ring_outer {} does not divide ring {}", d.ring_outer, d.ring));
  return {d.ring_outer, d.ring / d.ring_outer, d.ulysses};
}

std::vector<Range> ranges_of(const int64_t* pairs, i64 count, const char* name) {
  require(count >= 0, std::string(name) + "_count is negative");
  if (count > 0) given(pairs, name);
  std::vector<Range> ranges;
  for (i64 i = 0; i < count; ++i) ranges.push_back({pairs[2 * i], pairs[2 * i + 1]});
  return ranges;
}

/// A descriptor is an argument: what is wrong with it is a usage error that names its member.
void check(const AttentionPlan& plan) {
  try {
    check_attention_plan(plan);
  } catch (const InvalidInput& error) {
    const std::string& path = error.where().token;
    const std::size_t end = path.find("replicated") == 0 ? path.find('/') : path.size();
    const std::size_t slash = path.rfind('/', end - 1);
    const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
    throw UsageError(fmt::format("{} {}", path.substr(begin, end - begin), error.problem()));
  }
}

AttentionPlan plan_of(const usp_attention_desc& d) {
  AttentionPlan p;
  p.shape = shape_of(d);
  p.mesh = mesh_of(d);
  const auto method = static_cast<std::size_t>(
      enumerator(d.method, static_cast<std::int32_t>(methods().size()) - 1, "method"));
  p.method = methods()[method];
  p.layout = enumerator(d.layout, LayoutKind::balanced, "layout");
  p.band = {d.diff_min, d.diff_max};
  p.dkv_return = enumerator(d.dkv_return, DkvReturn::cycle, "dkv_return");
  p.head_chunks = d.head_chunks;
  p.backend = listed_backend(d.backend, "backend");
  p.prune = d.prune != 0;
  p.gated = d.gated != 0;
  if (d.gate_phases != 0) p.gate_phases = d.gate_phases;
  p.save_exchanged_qkv = d.save_exchanged_qkv != 0;
  p.sink = d.sink != 0;
  p.return_lse = d.return_lse != 0;
  p.score = {d.scale, d.softcap, d.dropout, d.alibi != 0, d.block_tokens};
  p.replicated_q = ranges_of(d.replicated_q, d.replicated_q_count, "replicated_q");
  p.replicated_k = ranges_of(d.replicated_k, d.replicated_k_count, "replicated_k");
  check(p);
  p.split_own_block = schedule::splits_own_block(p);
  return p;
}

usp_attention_desc desc_of(const usp_plan& handle) {
  const AttentionPlan& p = handle.layer.plan;
  usp_attention_desc d = defaults();
  d.batch = p.shape.batch;
  d.q_tokens = p.shape.q_tokens;
  d.kv_tokens = p.shape.kv_tokens;
  d.query_heads = p.shape.query_heads;
  d.kv_heads = p.shape.kv_heads;
  d.head_dim_qk = p.shape.head_dim_qk;
  d.head_dim_v = p.shape.head_dim_v;
  d.dtype = static_cast<int32_t>(p.shape.dtype);
  d.ring = p.mesh.ring();
  d.ring_outer = p.mesh.ring_outer;
  d.ulysses = p.mesh.ulysses;
  d.method = static_cast<int32_t>(index_of(p.method));
  d.layout = static_cast<int32_t>(p.layout);
  d.dkv_return = static_cast<int32_t>(p.dkv_return);
  d.head_chunks = p.head_chunks;
  d.diff_min = p.band.diff_min;
  d.diff_max = p.band.diff_max;
  d.backend = static_cast<int32_t>(index_of(p.backend));
  d.prune = p.prune;
  d.gated = p.gated;
  d.gate_phases = p.gate_phases;
  d.sink = p.sink;
  d.return_lse = p.return_lse;
  d.alibi = p.score.alibi;
  d.save_exchanged_qkv = p.save_exchanged_qkv;
  d.scale = p.score.scale;
  d.softcap = p.score.softcap;
  d.dropout = p.score.dropout;
  d.block_tokens = p.score.block_tokens;
  d.replicated_q = handle.replicated_q.data();
  d.replicated_q_count = static_cast<int64_t>(handle.replicated_q.size() / 2);
  d.replicated_k = handle.replicated_k.data();
  d.replicated_k_count = static_cast<int64_t>(handle.replicated_k.size() / 2);
  return d;
}

usp_plan* handle_of(PlanLayer layer) {
  auto handle = std::make_unique<usp_plan>();
  handle->layer = std::move(layer);
  const auto pairs = [](const std::vector<Range>& ranges, std::vector<int64_t>& out) {
    for (const Range range : ranges) out.insert(out.end(), {range.begin, range.end});
  };
  pairs(handle->layer.plan.replicated_q, handle->replicated_q);
  pairs(handle->layer.plan.replicated_k, handle->replicated_k);
  return handle.release();
}

}  // namespace
}  // namespace usp::capi

usp_status usp_attention_desc_init(usp_attention_desc* desc, size_t size) {
  using namespace usp::capi;
  return guarded([&] { start(desc, size, first_desc, defaults(), "desc"); });
}

usp_status usp_plan_create(const usp_attention_desc* desc, usp_plan** plan) {
  using namespace usp::capi;
  return guarded([&] {
    given(plan, "plan");
    usp::PlanLayer layer;
    layer.kind = "softmax";
    layer.plan = plan_of(taken(desc, first_desc, defaults(), "desc"));
    *plan = handle_of(std::move(layer));
  });
}

usp_status usp_plan_parse(const char* text, int32_t layer, usp_plan** plan) {
  using namespace usp::capi;
  return guarded([&] {
    given(text, "text");
    given(plan, "plan");
    usp::PlanFile file = usp::read_plan(text, "plan");
    const auto layers = static_cast<usp::i64>(file.layers.size());
    require(layer >= 0 && layer < layers,
            fmt::format("layer is {}; the plan has layers 0 to {}", layer, layers - 1));
    *plan = handle_of(std::move(file.layers[static_cast<std::size_t>(layer)]));
  });
}

usp_status usp_plan_get_desc(const usp_plan* plan, usp_attention_desc* desc) {
  using namespace usp::capi;
  return guarded([&] { put(desc_of(given(plan, "plan")), first_desc, desc, "desc"); });
}

int32_t usp_backend_built(int32_t backend) {
  if (backend < 0 || backend >= static_cast<int32_t>(usp::backends().size())) return -1;
  return usp::kernels::factory_of(usp::backends()[static_cast<std::size_t>(backend)]).built ? 1 : 0;
}

int32_t usp_plan_ranks(const usp_plan* plan) {
  return plan == nullptr ? 0 : plan->layer.plan.mesh.size();
}

void usp_plan_destroy(usp_plan* plan) {
  delete plan;
}
