// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cudnn_kernel.hpp"
#include "graphs.hpp"
#include "scratch.hpp"

#include <list>

namespace usp::cuda::cudnn {

[[nodiscard]] inline Strides strides_of(const ConstView& v) {
  return {v.batch_stride, v.row_stride, v.head_stride};
}
/// Every row starts on a boundary of 16 bytes.
[[nodiscard]] bool aligned(const ConstView& v);
/// The heads of a view that a call covers.
[[nodiscard]] View heads_of(const View& v, Range heads);

/// Which blocks of a call cuDNN computes, and what is left.
struct Share {
  std::vector<Block> blocks;
  std::vector<Slice> rest;
};

/// What forward and backward work with: a kernel's memory, its planned graphs and its scratch.
/// What the traits of a call have whatever the direction.
template <class Args>
[[nodiscard]] CallTraits call_traits(const Args& a, int compute_major) {
  CallTraits call;
  call.type = a.q.type;
  call.dqk = a.q.width;
  call.dv = a.v.width;
  call.query_heads = a.scope.query_heads;
  call.group = a.scope.group;
  call.terms = a.scope.terms;
  call.compute_major = compute_major;
  return call;
}

/// What the key of a block has whatever the direction; strides of outputs are the caller's to set.
template <class Args>
[[nodiscard]] GraphKey block_key(const Args& a, const Block& b, Direction direction) {
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

class Engine {
 public:
  Engine(Memory& memory, const CudaKernelOptions& options, MakeFallback fallback);

  void attend(const AttendArgs& args);
  void attend_grad(const AttendGradArgs& args);
  void forget();
  [[nodiscard]] int device() const { return device_; }

 private:
  struct Planned {
    Block block;
    GraphKey key;
    Graph* graph;
  };

  [[nodiscard]] Share divide(const AttendScope& scope, const CallTraits& call, bool rows_aligned) const;
  /// Keeps the blocks that cuDNN has a plan for; the others join the rest. Reserves their workspace.
  template <class KeyOf>
  [[nodiscard]] std::vector<Planned> plan(Share& share, KeyOf&& key_of);
  [[nodiscard]] AttentionKernel& fallback();
  void leave(const AttendArgs& args);
  void leave(const AttendGradArgs& args);
  /// The gradient by the fallback, which needs a delta.
  void grad_by_fallback(const AttendGradArgs& args);
  /// The slices at an address of their own until forget(): the fallback may keep tables by it.
  [[nodiscard]] const Slice* keep(const std::vector<Slice>& slices);

  void attend_merged(const AttendArgs& args, const std::vector<Planned>& blocks,
                     const std::vector<Slice>& rest);
  void attend_direct(const AttendArgs& args, const Planned& block);
  void attend_block(const AttendArgs& args, const Planned& planned, const View& o, const View& stats);
  /// Calls f with args whose o is fp32; rounds it into a given o of the input type.
  template <class F>
  void with_state(const AttendArgs& args, F&& f);

  void grad_merged(const AttendGradArgs& args, const std::vector<Planned>& blocks,
                   const std::vector<Slice>& rest);
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
  std::list<std::vector<Slice>> kept_;
  CUstream_st* stream_;
  int device_, compute_major_;
  Graphs graphs_;
  Scratch block_scratch_, state_scratch_, input_scratch_, delta_scratch_;
  std::unique_ptr<Arena> workspace_;
};

template <class KeyOf>
std::vector<Engine::Planned> Engine::plan(Share& share, KeyOf&& key_of) {
  std::vector<Planned> planned;
  i64 workspace = 0;
  for (const Block& b : share.blocks) {
    const GraphKey key = key_of(b);
    Graph* graph = graphs_.of(key).graph.get();
    if (graph == nullptr) {
      share.rest.push_back(slice_of(b));
      continue;
    }
    planned.push_back({b, key, graph});
    workspace = std::max(workspace, graph->workspace_bytes());
  }
  workspace_->reserve(workspace);
  return planned;
}

}  // namespace usp::cuda::cudnn
