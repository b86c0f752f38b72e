// SPDX-License-Identifier: Apache-2.0
#include "attention_flags.hpp"

#include "flag_effects.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/workload.hpp"
#include "usp/schedule/limits.hpp"

#include <vector>

namespace usp::cli {
namespace {

std::int64_t positive_tokens(const std::string& text, const char* flag) {
  const std::int64_t tokens = parse_tokens(text, flag, max_tokens);
  if (tokens < 1) throw UsageError(std::string(flag) + ": at least one token is needed");
  return tokens;
}

}  // namespace

AttentionShape AttentionFlags::shape() const {
  AttentionShape shape;
  shape.batch = batch;
  shape.q_tokens = shape.kv_tokens = positive_tokens(seq, "--seq");
  shape.query_heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim_qk = head_dim;
  shape.head_dim_v = head_dim_v.value_or(head_dim);
  shape.dtype = parse_word<DType>(dtype, "--dtype");
  return shape;
}

Band AttentionFlags::band() const {
  if (causal && full) throw UsageError("--causal and --full exclude each other; give one");
  if (window.empty()) return full ? Band{} : Band{0, unbounded};
  if (full) throw UsageError("--window looks back from a causal query; leave out --full");
  return {0, positive_tokens(window, "--window") - 1};
}

Documents AttentionFlags::packed_documents() const {
  const std::int64_t tokens = positive_tokens(seq, "--seq");
  if (documents.empty()) return Documents::single(tokens, tokens);
  const std::vector<i64> lengths = parse_document_lengths(documents, "--documents");
  check_documents(lengths, tokens);
  std::vector<i64> cu_seqlens{0};
  for (const i64 length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  return Documents::packed(std::move(cu_seqlens));
}

std::shared_ptr<AttentionFlags> add_attention_flags(CLI::App& verb) {
  auto flags = std::make_shared<AttentionFlags>();
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb.add_option(name, target, help)->group("Attention");
  };
  option("--heads", flags->heads, "query heads")->required()->check(within(1, max_heads));
  option("--kv-heads", flags->kv_heads, "KV heads; as many as --heads for multi-head attention")
      ->required()
      ->check(within(1, max_heads));
  option("--head-dim", flags->head_dim, "dimension of q and k of a head")
      ->required()
      ->check(within(1, max_head_dim));
  option("--head-dim-v", flags->head_dim_v, "dimension of v, where it differs")
      ->check(within(1, max_head_dim));
  option("--seq", flags->seq, "global tokens, e.g. 128k or 1M")->required();
  option("--batch", flags->batch, "sequences")
      ->check(within(std::int64_t{1}, max_batch))
      ->capture_default_str();
  option("--dtype", flags->dtype, "bf16, fp16, fp32 or fp64; times of the last two are uncalibrated")
      ->capture_default_str();
  option("--window", flags->window, "a query sees this many tokens, itself included");
  option("--documents", flags->documents, "lengths of packed documents that sum to --seq, e.g. 37k,51k,40k");
  verb.add_flag("--causal", flags->causal, "causal mask (the default)")->group("Attention");
  verb.add_flag("--full", flags->full, "no mask")->group("Attention");
  verb.add_flag("--forward-only", flags->forward_only, "no backward pass")->group("Attention");
  return flags;
}

AttentionPlan LayoutFlags::plan(const AttentionFlags& attention) const {
  refuse_without_ring(ring, {{"--ring-inner", ring_inner.has_value()},
                             {"--method", !method.empty()},
                             {"--layout", !layout.empty()},
                             {"--dkv-return", !dkv_return.empty()},
                             {"--prune", prune}});
  refuse_order_of_one_axis(order, ring, ulysses);
  refuse_without_backward(attention.forward_only, {{"--dkv-return", !dkv_return.empty()}});
  AttentionPlan plan;
  plan.shape = attention.shape();
  plan.band = attention.band();
  const int rows = ring.value_or(1), inner = ring_inner.value_or(rows);
  if (rows % inner != 0)
    throw UsageError("--ring-inner: " + std::to_string(inner) + " does not divide --ring " +
                     std::to_string(rows) + "; give a divisor");
  if (inner == 1 && rows > 1)
    throw UsageError(
        "--ring-inner 1: an inner ring of one rank is a plain ring; use --method ring without it");
  if (ring_inner && inner == rows)
    throw UsageError("--ring-inner " + std::to_string(inner) + " is all of --ring " + std::to_string(rows) +
                     ", a ring that nothing cuts; leave --ring-inner out, or give a smaller divisor");
  plan.mesh = {rows / inner, inner, ulysses.value_or(1)};
  plan.method = method.empty() ? default_method(plan.mesh) : parse_word<Method>(method, "--method");
  if (inner != rows && !plan.method->two_level_ring)
    throw UsageError("--ring-inner cuts the ring of --method double_ring; leave one of them out");
  if (!layout.empty()) plan.layout = parse_word<LayoutKind>(layout, "--layout");
  if (!dkv_return.empty()) plan.dkv_return = parse_word<DkvReturn>(dkv_return, "--dkv-return");
  if (plan.method->two_level_ring && inner == rows)
    throw UsageError("--method " + std::string(plan.method->word) +
                     " cuts its ring into an outer and an inner one; give --ring-inner, a divisor of "
                     "--ring " +
                     std::to_string(rows));
  if (!plan.method->partials_travel && plan.dkv_return == DkvReturn::cycle)
    throw UsageError("--dkv-return cycle follows the hops of a ring; --method " +
                     std::string(word_of(plan.method)) + " has none");
  plan.head_chunks = head_chunks.value_or(1);
  plan.prune = prune;
  return plan;
}

Placement LayoutFlags::placement() const {
  Placement placement;
  if (!order.empty()) placement.order = parse_word<AxisOrder>(order, "--order");
  return placement;
}

ExecutionOptions LayoutFlags::execution() const {
  ExecutionOptions options;
  options.transport = parse_word<Transport>(transport, "--transport");
  options.pack_kernels = options.transport == Transport::nccl;
  options.overlap = !no_overlap;
  return options;
}

std::shared_ptr<LayoutFlags> add_layout_flags(CLI::App& verb, bool required) {
  auto flags = std::make_shared<LayoutFlags>();
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb.add_option(name, target, help)->group("Layout");
  };
  const auto degree = [&](const char* name, auto& target, const char* help) {
    return option(name, target, help)->check(within(1, max_degree));
  };
  degree("--ring", flags->ring, "ring degree")->required(required);
  degree("--ulysses", flags->ulysses, "Ulysses degree")->required(required);
  degree("--ring-inner", flags->ring_inner, "inner ring of a double ring; divides --ring");
  option("--head-chunks", flags->head_chunks, "chunks in which heads are exchanged and attended (1)")
      ->check(within(1, max_head_chunks));
  option("--layout", flags->layout, "contiguous, zigzag, striped or balanced (zigzag)");
  option("--method", flags->method,
         "ring, ring_direct, all_gather_kv or double_ring (ring; double_ring with --ring-inner)");
  option("--dkv-return", flags->dkv_return, "circulate, direct or cycle (circulate)");
  option("--order", flags->order,
         "axis on neighbouring devices: ulysses_inner or ring_inner (ulysses_inner)");
  option("--transport", flags->transport,
         "inside a host: copy_engine, or nccl with its pack kernels and slower attention")
      ->capture_default_str();
  verb.add_flag("--no-overlap", flags->no_overlap, "transfers and kernels one after another")
      ->group("Layout");
  verb.add_flag("--prune", flags->prune, "send only the KV rows that a receiver's mask can see")
      ->group("Layout");
  return flags;
}

}  // namespace usp::cli
