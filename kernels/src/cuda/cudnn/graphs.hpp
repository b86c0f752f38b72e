// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <compare>
#include <map>
#include <memory>
#include <string>

struct CUstream_st;

/// cuDNN's fused attention behind a plain interface: one source file includes its headers.
namespace usp::kernels::cudnn {

/// In elements; the elements of a row and head are contiguous.
struct Strides {
  i64 batch = 0, row = 0, head = 0;
  friend auto operator<=>(const Strides&, const Strides&) = default;
};

enum class Direction : std::uint8_t { forward, backward };

/// All that a graph depends on.
struct GraphKey {
  Direction direction = Direction::forward;
  DType type = DType::bf16;  ///< bf16 or fp16, of all tensors but the statistics
  i64 batch = 0, q_heads = 0, kv_heads = 0, q_rows = 0, k_rows = 0, dqk = 0, dv = 0;
  i64 right_bound = -1;  ///< key j of query i only if j <= i + right_bound; -1: no bound
  i64 left_bound = 0;    ///< only if j > i - left_bound; 0: no bound
  double scale = 1;
  Strides q, k, v, o;
  Strides d_o, dq, dk, dv_out;  ///< backward only
  friend auto operator<=>(const GraphKey&, const GraphKey&) = default;
};

/// Device memory of one call. Statistics: natural log-sum-exp, fp32, packed [batch][head][row].
struct GraphMemory {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  void *o = nullptr, *stats = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// A graph that cuDNN has planned, or what it says against it.
class Graph {
 public:
  virtual ~Graph() = default;
  [[nodiscard]] virtual i64 workspace_bytes() const = 0;
  /// Enqueues.
  virtual void run(const GraphMemory& memory, void* workspace, CUstream_st* stream) = 0;
};
struct PlannedGraph {
  std::shared_ptr<Graph> graph;  ///< null: refused
  std::string unsupported_reason;
};

/// A cuDNN handle.
class Library {
 public:
  virtual ~Library() = default;
  /// Takes tens of milliseconds.
  [[nodiscard]] virtual PlannedGraph plan(const GraphKey& key) = 0;
  [[nodiscard]] virtual std::string version() const = 0;  ///< "9.19.1"
};

/// Throws EnvironmentError where cuDNN is missing at run time or was at build time. Its device is
/// the current one.
[[nodiscard]] std::unique_ptr<Library> open_library();

/// Plans by key, made once.
class Graphs {
 public:
  Graphs() : library_(open_library()) {}
  [[nodiscard]] std::string version() const { return library_->version(); }
  [[nodiscard]] const PlannedGraph& of(const GraphKey& key) {
    const auto known = graphs_.find(key);
    if (known != graphs_.end()) return known->second;
    return graphs_.emplace(key, library_->plan(key)).first->second;
  }

 private:
  std::unique_ptr<Library> library_;
  std::map<GraphKey, PlannedGraph> graphs_;
};

}  // namespace usp::kernels::cudnn
