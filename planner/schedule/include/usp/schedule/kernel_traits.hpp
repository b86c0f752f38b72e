// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/schedule/band_blocks.hpp"
#include "usp/schedule/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

/// Whether a backend takes a call, by its record (backend.hpp): for plans and for kernels.
namespace usp::schedule {

/// Why a backend does not take a call, a block or a slice, which then goes to its fallback. The last two
/// are found only by a run.
enum class UnsupportedReason : std::uint8_t {
  none,
  dtype,
  softcap,
  alibi,
  dropout,
  block_mask,
  kv_group_spans_ranks,
  head_dim_step,
  head_dim,
  unequal_head_dims,
  missing_o,
  deterministic,
  unequal_steps,
  many_slices,
  many_blocks,
  single_row,
  wide_window,
  no_pairs,
  architecture,
  negative_scale,
  alignment,
  no_graph
};

}  // namespace usp::schedule

namespace usp {

template <>
struct WordTable<schedule::UnsupportedReason> {
  using Reason = schedule::UnsupportedReason;
  static constexpr Word<Reason> words[] = {{"none", Reason::none},
                                           {"dtype", Reason::dtype},
                                           {"softcap", Reason::softcap},
                                           {"alibi", Reason::alibi},
                                           {"dropout", Reason::dropout},
                                           {"block_mask", Reason::block_mask},
                                           {"kv_group_spans_ranks", Reason::kv_group_spans_ranks},
                                           {"head_dim_step", Reason::head_dim_step},
                                           {"head_dim", Reason::head_dim},
                                           {"unequal_head_dims", Reason::unequal_head_dims},
                                           {"missing_o", Reason::missing_o},
                                           {"deterministic", Reason::deterministic},
                                           {"unequal_steps", Reason::unequal_steps},
                                           {"many_slices", Reason::many_slices},
                                           {"many_blocks", Reason::many_blocks},
                                           {"single_row", Reason::single_row},
                                           {"wide_window", Reason::wide_window},
                                           {"no_pairs", Reason::no_pairs},
                                           {"architecture", Reason::architecture},
                                           {"negative_scale", Reason::negative_scale},
                                           {"alignment", Reason::alignment},
                                           {"no_graph", Reason::no_graph}};
};

}  // namespace usp

namespace usp::schedule {

inline constexpr std::size_t unsupported_reason_count = std::size(WordTable<UnsupportedReason>::words);
/// The sentence of a report about what `backend` does not take; "" for none.
[[nodiscard]] std::string text_of(UnsupportedReason why, Backend backend);
/// Whether planning finds the reason; alignment and no_graph follow from a run.
[[nodiscard]] constexpr bool found_by_planning(UnsupportedReason why) {
  return why != UnsupportedReason::none && why != UnsupportedReason::alignment &&
         why != UnsupportedReason::no_graph;
}

[[nodiscard]] constexpr const KernelTraits& kernel_traits(Backend backend) {
  return backend->takes;
}

/// Whether cards of this compute capability run what computes both passes.
[[nodiscard]] inline bool runs_on(Backend backend, int compute_major) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const KernelTraits& traits = kernel_traits(backend.of(pass));
    if (compute_major < traits.min_compute_major || compute_major > traits.max_compute_major) return false;
  }
  return true;
}

/// What decides about a whole call before its slices are looked at. Plans assume the defaults of the last
/// three, which are facts of a run.
struct CallTraits {
  DType type = DType::bf16;
  i64 dqk = 0, dv = 0;
  Range query_heads;
  int group = 1;
  bool negative_scale = false, softcap = false, alibi = false, dropout = false, block_mask = false;
  bool backward = false;
  bool has_o = true, deterministic = false;
  int compute_major = 9;
};

/// What a plan says of a call with these query heads.
[[nodiscard]] inline CallTraits call_traits(const AttentionPlan& plan, Pass pass, Range query_heads) {
  CallTraits call;
  call.type = plan.shape.dtype;
  call.dqk = plan.shape.head_dim_qk;
  call.dv = plan.shape.head_dim_v;
  call.query_heads = query_heads;
  call.group = plan.shape.query_heads / plan.shape.kv_heads;
  call.negative_scale = plan.score.scale < 0;  // 0 stands for the default
  call.softcap = plan.score.softcap != 0;
  call.alibi = plan.score.alibi;
  call.dropout = plan.score.dropout != 0;
  call.block_mask = plan.score.block_tokens > 0;
  call.backward = pass == Pass::backward;
  return call;
}

/// Why a backend does not take a call; none: it does.
[[nodiscard]] constexpr UnsupportedReason unsupported_reason(const KernelTraits& t, const CallTraits& c) {
  if (c.compute_major < t.min_compute_major || c.compute_major > t.max_compute_major)
    return UnsupportedReason::architecture;
  if (!t.supports_fp32_fp64 && usp::bytes_of(c.type) > 2) return UnsupportedReason::dtype;
  if (!t.negative_scale && c.negative_scale) return UnsupportedReason::negative_scale;
  if (!t.softcap && c.softcap) return UnsupportedReason::softcap;
  if (!t.alibi && c.alibi) return UnsupportedReason::alibi;
  if (!t.dropout && c.dropout) return UnsupportedReason::dropout;
  if (!t.block_mask && c.block_mask) return UnsupportedReason::block_mask;
  if (!t.kv_group_spans_ranks && (c.query_heads.begin % c.group != 0 || c.query_heads.end % c.group != 0))
    return UnsupportedReason::kv_group_spans_ranks;
  if (c.dqk % t.head_dim_step != 0 || c.dv % t.head_dim_step != 0) return UnsupportedReason::head_dim_step;
  const i64 max_dim = !c.backward                              ? t.max_head_dim
                      : c.compute_major < t.grad_compute_major ? t.max_early_grad_head_dim
                                                               : t.max_grad_head_dim;
  if (c.dqk > max_dim || c.dv > max_dim) return UnsupportedReason::head_dim;
  if (!c.backward) return UnsupportedReason::none;
  const bool known = c.dqk == t.grad_dim_qk && c.dv == t.grad_dim_v;
  if (!t.any_unequal_head_dims && c.dqk != c.dv && !known) return UnsupportedReason::unequal_head_dims;
  if (!t.grad_without_o && !c.has_o) return UnsupportedReason::missing_o;
  if (!t.deterministic_grad && c.deterministic) return UnsupportedReason::deterministic;
  return UnsupportedReason::none;
}

/// Why what computes a pass of a plan takes no call with these query heads; none: nothing that all such calls
/// share is against it.
[[nodiscard]] inline UnsupportedReason unsupported_reason(const AttentionPlan& plan, Pass pass,
                                                          Range query_heads) {
  return unsupported_reason(kernel_traits(plan.backend.of(pass)), call_traits(plan, pass, query_heads));
}
/// The same with all heads.
[[nodiscard]] inline UnsupportedReason unsupported_reason(const AttentionPlan& plan, Pass pass) {
  return unsupported_reason(plan, pass, {0, plan.shape.query_heads});
}

/// The same for one block, of a backend that takes blocks.
[[nodiscard]] inline UnsupportedReason unsupported_reason(const BandBlock& b) {
  if (b.q_rows.size() == 1 || b.k_rows.size() == 1) return UnsupportedReason::single_row;
  if (b.bounds_left() && b.q_rows.size() > b.k_rows.size()) return UnsupportedReason::wide_window;
  return UnsupportedReason::none;
}

/// Which blocks of a call a backend computes, and what is left, for `why` (the first reason met).
struct BlockSplit {
  std::vector<BandBlock> blocks;
  std::vector<Slice> rest;
  UnsupportedReason why = UnsupportedReason::none;
};

/// Everything left, for one reason.
[[nodiscard]] inline BlockSplit all_left(const Slice* slices, i64 count, UnsupportedReason why) {
  return {{}, std::vector<Slice>(slices, slices + count), why};
}

/// Divides a call that the backend takes and that has to be cut into blocks (not any_slices). Expects that no
/// pair is covered twice. With `keeps_shift` (gradients), rows of dk that differ keep blocks apart.
[[nodiscard]] inline BlockSplit split_into_blocks(const KernelTraits& traits, const Slice* slices, i64 count,
                                                  bool keeps_shift) {
  if (count > static_cast<i64>(traits.max_slices))
    return all_left(slices, count, UnsupportedReason::many_slices);
  BlockSplit share;
  const auto leave = [&](const Slice& s, UnsupportedReason why) {
    share.rest.push_back(s);
    if (share.why == UnsupportedReason::none) share.why = why;
  };
  std::vector<Slice> alike;
  for (i64 i = 0; i < count; ++i) {
    if (has_equal_strides(slices[i]))
      alike.push_back(slices[i]);
    else
      leave(slices[i], UnsupportedReason::unequal_steps);
  }
  const std::vector<BandBlock> blocks = blocks_of(alike, keeps_shift);
  if (blocks.size() > traits.max_blocks) return all_left(slices, count, UnsupportedReason::many_blocks);
  for (const BandBlock& b : blocks) {
    if (const UnsupportedReason why = unsupported_reason(b); why != UnsupportedReason::none)
      leave(slice_of(b), why);
    else
      share.blocks.push_back(b);
  }
  return share;
}

/// Backend of one step of a plan, and what the plan's backend leaves to its fallback: plain data.
struct StepBackend {
  Backend use;
  UnsupportedReason why = UnsupportedReason::none;  ///< of what is left; the first reason met
  std::int32_t blocks = 0;                          ///< calls of a backend that takes blocks
  std::int32_t left = 0;                            ///< slices for the fallback
  friend bool operator==(const StepBackend& a, const StepBackend& b) {
    return a.use == b.use && a.why == b.why && a.blocks == b.blocks && a.left == b.left;
  }
};

}  // namespace usp::schedule
