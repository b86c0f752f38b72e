// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cudnn_kernel.hpp"
#include "graphs.hpp"
#include "scratch.hpp"

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/kernel_traits.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace usp::kernels::cudnn {

[[nodiscard]] inline Strides strides_of(const ConstView& v) {
  return {v.batch_stride, v.row_stride, v.head_stride};
}
/// Every row starts on a boundary of 16 bytes.
[[nodiscard]] bool aligned(const ConstView& v);
/// The heads of a view that a call covers.
[[nodiscard]] View heads_of(const View& v, Range heads);

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

/// A block that cuDNN computes.
struct Planned {
  schedule::BandBlock block;
  std::shared_ptr<Graph> graph;
};
/// Blocks of cuDNN, and slices of the fallback. A departure is a block, or a whole call, that its plan wants
/// of cuDNN and that goes to the fallback.
struct Division {
  std::vector<Planned> blocks;
  std::vector<schedule::Slice> rest;
  std::vector<schedule::UnsupportedReason> departures;
};

/// Memory that each step uses in turn.
struct ScratchArenas {
  explicit ScratchArenas(Memory& memory)
      : block(memory.make_scratch()),
        state(memory.make_scratch()),
        input(memory.make_scratch()),
        delta(memory.make_scratch()),
        workspace(memory.make_scratch()) {}
  std::unique_ptr<Arena> block;      ///< results of one block
  std::unique_ptr<Arena> state;      ///< fp32 results, before they are rounded
  std::unique_ptr<Arena> input;      ///< inputs in cuDNN's type
  std::unique_ptr<Arena> delta;      ///< for the fallback
  std::unique_ptr<Arena> workspace;  ///< cuDNN's own
};

/// What the steps of a kernel share: its memory, planned graphs, the fallback and scratch.
class Engine {
 public:
  Engine(Memory& memory, const CudaKernelOptions& options, cuda::MakeFallback fallback);

  [[nodiscard]] Memory& memory() { return memory_; }
  [[nodiscard]] ScratchArenas& scratch() { return scratch_; }
  [[nodiscard]] std::string library_version() const { return graphs_.version(); }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int compute_major() const { return compute_major_; }
  [[nodiscard]] bool deterministic() const { return options_.deterministic; }
  [[nodiscard]] cuda::Fallback& fallback() { return fallback_; }
  [[nodiscard]] const cuda::Fallback& fallback() const { return fallback_; }

  /// Blocks as the plan of the call says, where it says; graphs are yet to be found.
  [[nodiscard]] Division divide(const AttendScope& scope, const schedule::CallTraits& call,
                                bool rows_aligned) const;
  /// Finds graphs by the keys of blocks and makes room for them; blocks without one join the rest.
  template <class KeyOf>
  void find_graphs(Division& division, const AttendScope& scope, const KeyOf& key_of);

  void run(const Planned& planned, const GraphMemory& m) {
    planned.graph->run(m, scratch_.workspace->data(), memory_.stream());
  }

 private:
  Memory& memory_;
  CudaKernelOptions options_;
  cuda::Fallback fallback_;
  int device_, compute_major_;
  Graphs graphs_;
  ScratchArenas scratch_;
};

template <class KeyOf>
void Engine::find_graphs(Division& division, const AttendScope& scope, const KeyOf& key_of) {
  std::vector<Planned> found;
  i64 workspace = 0;
  for (Planned& p : division.blocks) {
    p.graph = graphs_.of(key_of(p.block)).graph;
    if (p.graph == nullptr) {
      division.rest.push_back(schedule::slice_of(p.block));
      if (scope.use) division.departures.push_back(schedule::UnsupportedReason::no_graph);
      continue;
    }
    workspace = std::max(workspace, p.graph->workspace_bytes());
    found.push_back(std::move(p));
  }
  division.blocks = std::move(found);
  scratch_.workspace->reserve(workspace);
}

[[nodiscard]] std::unique_ptr<PreparedAttend> make_forward_step(Engine& engine, const AttendArgs& args);
[[nodiscard]] std::unique_ptr<PreparedAttendGrad> make_backward_step(Engine& engine,
                                                                     const AttendGradArgs& args);

}  // namespace usp::kernels::cudnn
