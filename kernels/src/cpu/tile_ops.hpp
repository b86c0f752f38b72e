// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <cstdint>

/// The arithmetic of one tile, compiled once per instruction set. Two layouts carry all of it, for elements
/// T:
///   strip   [depth][strip]            `strip` rows of the operand that is broadcast, interleaved
///   panel   [depth][vectors * lanes]  columns of the operand that fills vectors
/// so that out[row][column] = sum over depth of strip[depth][row] * panel[depth][column]. In logit tiles a
/// row is a key and a column a query: maxima and sums of the softmax then run down whole vectors.
namespace usp::kernels::cpu {

/// Rows in memory: element w of row r lies at data[r * stride + w].
template <class T>
struct Rows {
  const T* data = nullptr;
  i64 stride = 0;
  i64 count = 0;
  i64 width = 0;
};

template <class T>
struct StripProduct {
  const T* strips = nullptr;
  i64 strip_stride = 0;  ///< from one strip to the next
  i64 strip_count = 0;
  i64 depth = 0;
  const T* panel = nullptr;
  int vectors = 0;
  T* out = nullptr;  ///< [strip_count * strip][vectors * lanes]
  bool add = false;  ///< else overwrite
};

/// out[key][w] += sum over panels and queries of tile[panel][key][query] * rows[query][w].
template <class T>
struct OuterProduct {
  const T* tile = nullptr;  ///< [panels][.][vectors * lanes]
  i64 panel_stride = 0;
  i64 panels = 0;
  int vectors = 0;
  const Range* keys =
      nullptr;  ///< per panel: keys it holds; from and to the next strip border it holds zeros
  i64 key_count = 0;
  const T* rows = nullptr;  ///< packed by pack_columns
  i64 row_capacity = 0;
  i64 width = 0;  ///< a multiple of lanes
  T* out = nullptr;
  i64 out_stride = 0;
};

/// Keys [keys.begin, keys.end) of a panel of logits.
template <class T>
struct PanelPart {
  T* tile = nullptr;
  Range keys;
  int vectors = 0;
};

/// Distances between the positions of a tile's queries and keys: |origin + query * q_step - key * k_step|.
template <class T>
struct Distances {
  T origin, q_step, k_step;
};

/// Names of a tile's pairs for dropout.
struct PairNames {
  std::uint64_t seed = 0;
  i64 batch = 0, head = 0;
  i64 q_pos = 0, q_step = 0, k_pos = 0, k_step = 0;
  std::uint32_t threshold = 0;
};

template <class T>
struct TileOps {
  i64 lanes;
  i64 strip;
  int max_vectors;

  void (*widen)(const std::byte* from, DType type, i64 count, T* to);
  /// [count / strip][width][strip], rows beyond the last are zero.
  void (*pack_strips)(const Rows<T>& rows, T* strips);
  /// [width / strip][strip_stride]: per strip of elements [count][strip], elements beyond the width are zero.
  void (*pack_element_strips)(const Rows<T>& rows, i64 strip_stride, T* strips);
  /// [width][vectors * lanes] times factor, columns beyond the last row are zero.
  void (*pack_panel)(const Rows<T>& rows, T factor, int vectors, T* panel);
  /// Groups of up to max_vectors vectors of elements: per group [row_capacity][group], zero beyond the rows.
  void (*pack_columns)(const Rows<T>& rows, i64 row_capacity, T* columns);
  /// A panel [depth][vectors * lanes] back to [vectors * lanes][depth].
  void (*unpack_panel)(const T* panel, i64 depth, int vectors, T* rows);

  void (*strip_product)(const StripProduct<T>& product);
  void (*outer_product)(const OuterProduct<T>& product);

  /// Logits outside [low, high) of their column become -infinity.
  void (*mask)(const PanelPart<T>& part, const T* low, const T* high);
  /// t = tanh(s); s = cap * t, and slope = 1 - t * t where slope is not null.
  void (*softcap)(const PanelPart<T>& part, T cap, T* slope);
  void (*alibi)(const PanelPart<T>& part, T slope, const Distances<T>& distances);
  /// A tile of 0 (dropped) and kept_value.
  void (*keep)(const PanelPart<T>& part, const PairNames& names, T kept_value);
  void (*multiply)(const PanelPart<T>& part, const T* factors);
  /// Logits in units of log 2 become exp2(s - top); top and sum (of exp2(s - top)) are carried on. Returns
  /// whether a top rose; correction = exp2(old top - top).
  bool (*softmax)(const PanelPart<T>& part, T* top, T* sum, T* correction);
  /// Multiplies columns of [depth][vectors * lanes].
  void (*scale_columns)(T* panel, i64 depth, int vectors, const T* factors);
  /// s becomes p = exp2(s - lse), dp becomes ds = p * (dp - delta).
  void (*softmax_grad)(const PanelPart<T>& part, T* dp, const T* lse, const T* delta);
  /// The same with dropout and softcap (null: none): dp becomes p * (keep * dp - delta) * slope, s p * keep.
  struct GradTerms {
    const T* keep;
    const T* slope;
  };
  void (*softmax_grad_terms)(const PanelPart<T>& part, T* dp, const T* lse, const T* delta, GradTerms terms);
  /// to = a * to + b * from.
  void (*blend)(T* to, T a, const T* from, T b, i64 count);
  double (*dot)(const T* a, const T* b, i64 count);
};

/// Instruction sets a tile may be compiled for.
enum class Isa { generic, avx2, avx512 };

/// The best set that this machine has and this build holds.
[[nodiscard]] Isa best_isa();
[[nodiscard]] bool has_isa(Isa isa);
[[nodiscard]] const char* name_of(Isa isa);
template <class T>
[[nodiscard]] const TileOps<T>& tile_ops(Isa isa);

}  // namespace usp::kernels::cpu
