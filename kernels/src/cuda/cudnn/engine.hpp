// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cudnn_kernel.hpp"
#include "graphs.hpp"
#include "scratch.hpp"

#include "usp/schedule/kernel_traits.hpp"

#include <array>
#include <list>

namespace usp::kernels::cudnn {

[[nodiscard]] inline Strides strides_of(const ConstView& v) {
  return {v.batch_stride, v.row_stride, v.head_stride};
}
/// Every row starts on a boundary of 16 bytes.
[[nodiscard]] bool aligned(const ConstView& v);
/// The heads of a view that a call covers.
[[nodiscard]] View heads_of(const View& v, Range heads);

/// What the traits of a call have whatever the direction.
template <class Args>
[[nodiscard]] schedule::CallTraits call_traits(const Args& a, int compute_major) {
  schedule::CallTraits call;
  call.type = a.q.type;
  call.dqk = a.q.width;
  call.dv = a.v.width;
  call.query_heads = a.scope.query_heads;
  call.group = a.scope.group;
  const ScoreTerms& terms = *a.scope.terms;
  call.softcap = terms.softcap != 0;
  call.alibi = terms.alibi_slopes != nullptr;
  call.dropout = terms.dropout != 0;
  call.block_mask = terms.blocks != nullptr;
  call.compute_major = compute_major;
  return call;
}

/// What the key of a block has whatever the direction; strides of outputs are the caller's to set.
template <class Args>
[[nodiscard]] GraphKey block_key(const Args& a, const schedule::BandBlock& b, Direction direction) {
  GraphKey key;
  key.direction = direction;
  key.type = a.q.type;
  key.batch = a.q.batch;
  key.q_heads = a.scope.query_heads.size();
  key.kv_heads = a.scope.kv_heads().size();
  key.q_rows = b.q_rows.size();
  key.k_rows = b.k_rows.size();
  key.dqk = a.q.width;
  key.dv = a.v.width;
  if (b.bounds_right()) key.right_bound = b.right_bound();
  if (b.bounds_left()) key.left_bound = b.left_bound();
  key.scale = a.scope.terms->scale;
  key.q = strides_of(a.q);
  key.k = strides_of(a.k);
  key.v = strides_of(a.v);
  return key;
}

/// What forward and backward work with: a kernel's memory, its planned graphs and its scratch.
class Engine {
 public:
  Engine(Memory& memory, const CudaKernelOptions& options, MakeFallback fallback);

  void attend(const AttendArgs& args);
  void attend_grad(const AttendGradArgs& args);
  void forget();
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const;
  [[nodiscard]] int device() const { return device_; }

 private:
  struct Planned {
    schedule::BandBlock block;
    GraphKey key;
    Graph* graph;
  };

  /// As the schedule says, where it says; what a plan could not know is counted as a fallback.
  [[nodiscard]] schedule::BlockSplit split_into_blocks(const AttendScope& scope,
                                                       const schedule::CallTraits& call, bool rows_aligned);
  /// Keeps the blocks that cuDNN has a plan for; the others join the rest. Reserves their workspace.
  template <class KeyOf>
  [[nodiscard]] std::vector<Planned> plan(schedule::BlockSplit& share, const AttendScope& scope, Pass pass,
                                          KeyOf&& key_of);
  void depart(const AttendScope& scope, Pass pass, schedule::UnsupportedReason why);
  [[nodiscard]] AttentionKernel& fallback();
  void leave(const AttendArgs& args);
  void leave(const AttendGradArgs& args);
  /// The gradient by the fallback, which needs a delta.
  void grad_by_fallback(const AttendGradArgs& args);
  /// The slices at an address of their own until forget(): the fallback may keep tables by it.
  [[nodiscard]] const schedule::Slice* keep(const std::vector<schedule::Slice>& slices);

  void attend_merged(const AttendArgs& args, const std::vector<Planned>& blocks,
                     const std::vector<schedule::Slice>& rest);
  void attend_direct(const AttendArgs& args, const Planned& block);
  void attend_block(const AttendArgs& args, const Planned& planned, const View& o, const View& stats);
  /// Calls f with args whose o is fp32; rounds it into a given o of the input type.
  template <class F>
  void with_state(const AttendArgs& args, F&& f);

  void grad_merged(const AttendGradArgs& args, const std::vector<Planned>& blocks,
                   const std::vector<schedule::Slice>& rest);
  struct BlockGrads {
    View dq, dk, dv;
  };
  void grad_block(const AttendGradArgs& args, const Planned& planned, const BlockGrads& to,
                  const View& stats);
  template <class F>
  void with_grad_state(const AttendGradArgs& args, F&& f);

  Memory& memory_;
  CudaKernelOptions options_;
  MakeFallback make_fallback_;
  std::unique_ptr<AttentionKernel> fallback_;
  std::list<std::vector<schedule::Slice>> kept_;
  int device_, compute_major_;
  Graphs graphs_;
  std::array<std::array<i64, schedule::unsupported_texts.size()>, 2> departed_{};  ///< by pass and reason
  Scratch block_scratch_, state_scratch_, input_scratch_, delta_scratch_;
  std::unique_ptr<Arena> workspace_;
};

template <class KeyOf>
std::vector<Engine::Planned> Engine::plan(schedule::BlockSplit& share, const AttendScope& scope, Pass pass,
                                          KeyOf&& key_of) {
  std::vector<Planned> planned;
  i64 workspace = 0;
  for (const schedule::BandBlock& b : share.blocks) {
    const GraphKey key = key_of(b);
    Graph* graph = graphs_.of(key).graph.get();
    if (graph == nullptr) {
      share.rest.push_back(schedule::slice_of(b));
      depart(scope, pass, schedule::UnsupportedReason::no_graph);
      continue;
    }
    planned.push_back({b, key, graph});
    workspace = std::max(workspace, graph->workspace_bytes());
  }
  workspace_->reserve(workspace);
  return planned;
}

}  // namespace usp::kernels::cudnn
