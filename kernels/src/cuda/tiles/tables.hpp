// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

/// Tables of tiles as the kernels read them. A call has one or several blocks of keys.
namespace usp::kernels::tiles {

/// Rows of a streamed tile in the tables.
inline constexpr int streamed_rows = 64;

/// A Slice as the device reads it; rows fit 32 bits.
struct DeviceSlice {
  i64 q_pos, k_pos, q_step, k_step, diff_min, diff_max;
  int q_row, q_count, k_row, k_count;
};

/// Key rows that a tile of query rows sees through one slice: [begin, end), of which every row sees
/// [full_begin, full_end).
struct KeySegment {
  int slice, begin, end, full_begin, full_end, block, unused[2];
};
/// Query rows that see a tile of gradient rows through one slice: [begin, end); not masked when all of them
/// see the whole tile. Gradient row r is key row r + shift; rows outside [load_begin, load_end) are no keys.
struct QuerySegment {
  int slice, begin, end, masked, shift, load_begin, load_end, block;
};
/// Tiles of rows [row, row_end) in order of falling work. Rows of query tiles are those of the call, rows of
/// key tiles those of a block.
struct TileEntry {
  int row, row_end, segment_begin, segment_end, streamed_tiles, block;
};

}  // namespace usp::kernels::tiles
