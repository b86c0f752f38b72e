// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/types.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// How the ring axis exchanges KV. A method is one record, MethodTraits: its word, what plans it takes, and
/// its stage graph. The generator walks the graph; prices, bytes, expansion and execution follow from the
/// schedule that it makes. Ulysses alone is any method with one ring row.
namespace usp {

struct AttentionPlan;

/// What a rank attends in one tick of a head chunk, how those key blocks reach it, and how the partial dK/dV
/// that it adds to them goes home. Stage 0 is the own row.
struct Stage {
  RingOffsets offsets;  ///< of the blocks: block d is the row d behind the own one (Mesh::shift_of)
  BufferSlot slot = BufferSlot::row;  ///< where the blocks arrive
  int parent = -1;                    ///< stage whose attending rank sends the block; 0: the block's owner
  int fetched_with = 0;  ///< the transfer starts in the tick of this stage; it is due one before the own
  bool partial_travels = false;  ///< circulate: the partial goes on to the next stage with its block, while
                                 ///< a later rank adds to it; otherwise home
  bool outer_partial = false;    ///< summed in the accumulators of the outer ring, which are free longer
  int home_ticks = 1;            ///< ticks that the partial has to get home
};

/// A rule of a method that a plan breaks: the field by its path ("mesh/ring_outer"), and text that reads on
/// from the field's name.
struct PlanProblem {
  std::string field;
  std::string text;
};

struct MethodTraits {
  std::string_view word;
  bool two_level_ring = false;       ///< its ring is an outer and an inner one, both of more than one rank
  bool joins_remote_blocks = false;  ///< one stage attends every remote block
  bool partials_travel = false;      ///< some stage has partial_travels
  std::optional<PlanProblem> (*problem)(const AttentionPlan&) = nullptr;
  /// Stages of a ring (mesh.ulysses is not read), in order; `out` is empty. Offsets of all stages are
  /// disjoint and cover [0, ring); those fed from a stage, directly or not, are one range.
  void (*stages)(const Mesh& mesh, std::vector<Stage>& out) = nullptr;
  /// Distinct displacements along the ring that its transfers make: what a price has to route.
  i64 (*displacements)(const Mesh&) = nullptr;
  std::string (*summary)(const Mesh&) = nullptr;  ///< one sentence for readers of a plan
};

/// A value that names a method; equal to itself alone. Refers to a record that outlives it.
class Method {
 public:
  constexpr Method();  ///< ring
  constexpr explicit Method(const MethodTraits& traits) : traits_(&traits) {}
  [[nodiscard]] constexpr const MethodTraits* operator->() const { return traits_; }
  friend constexpr bool operator==(Method a, Method b) { return a.traits_ == b.traits_; }
  friend constexpr bool operator!=(Method a, Method b) { return a.traits_ != b.traits_; }

  /// Stage d receives from the neighbour that attended the block last.
  static const Method ring;
  /// Every block is sent by its owner straight to the rank that needs it.
  static const Method ring_direct;
  /// Every remote block arrives during the attention to the own block.
  static const Method all_gather_kv;
  /// An outer ring (between nodes) whose blocks travel on an inner ring; the next outer block starts one
  /// inner lap early (LoongTrain, arXiv:2406.18485).
  static const Method double_ring;

 private:
  const MethodTraits* traits_;
};

extern const MethodTraits ring_traits, ring_direct_traits, all_gather_kv_traits, double_ring_traits;
constexpr Method::Method() : traits_(&ring_traits) {}
inline constexpr Method Method::ring{ring_traits};
inline constexpr Method Method::ring_direct{ring_direct_traits};
inline constexpr Method Method::all_gather_kv{all_gather_kv_traits};
inline constexpr Method Method::double_ring{double_ring_traits};

/// The methods that files, flags and the C API name, in the order of the C API's enumerators.
[[nodiscard]] const std::vector<Method>& methods();
/// Place of a method in that list. Throws InternalError for one that is not in it.
[[nodiscard]] std::size_t index_of(Method method);
template <>
[[nodiscard]] WordList<Method> word_list<Method>();
/// Of any method, in that list or not.
template <>
[[nodiscard]] inline std::string_view word_of<Method>(Method method) {
  return method->word;
}

/// The method of a mesh where none is named: ring, or the first of two levels where the mesh has an outer
/// ring.
[[nodiscard]] Method default_method(const Mesh& mesh);
/// What a gated plan without a method takes: the first that attends all remote blocks in one stage.
[[nodiscard]] Method gated_method();

}  // namespace usp
