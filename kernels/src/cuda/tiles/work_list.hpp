// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tables.hpp"

#include "usp/kernels/memory.hpp"
#include "usp/schedule/slice.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace usp::kernels::tiles {

/// A list of slices, those of a block together.
struct SliceList {
  const schedule::Slice* at = nullptr;
  i64 count = 0;
  const int* block = nullptr;  ///< of each slice; null: there is one block

  [[nodiscard]] int block_of(i64 slice) const { return block == nullptr ? 0 : block[slice]; }
};

/// Tiles of rows with what each of them meets, on the host. Tiles that meet nothing come last.
template <class Segment>
struct TileTable {
  std::vector<TileEntry> tiles;
  std::vector<Segment> segments;
  int busy = 0;  ///< tiles that meet something
};

/// Ranges of `tile_rows` rows; the last may be shorter.
[[nodiscard]] std::vector<Range> even_tiles(i64 rows, int tile_rows);
/// Tiles of query rows against key rows, whose segments follow one another as the slices do.
[[nodiscard]] TileTable<KeySegment> tiles_of_queries(const SliceList& slices,
                                                     const std::vector<Range>& tiles);
/// Tiles of gradient rows of each block, of up to `tile_rows` rows, against query rows.
[[nodiscard]] TileTable<QuerySegment> tiles_of_keys(const SliceList& slices,
                                                    const std::vector<std::vector<Range>>& row_tiles,
                                                    int tile_rows);

/// Memory of tables. What one table leaves, a later one takes: its upload comes after the work on the former
/// in the order of the memory's stream.
class TablePool {
 public:
  explicit TablePool(Memory& memory) : memory_(memory) {}
  [[nodiscard]] Memory& memory() { return memory_; }
  [[nodiscard]] std::unique_ptr<Arena> take(i64 bytes);
  void give_back(std::unique_ptr<Arena> memory) noexcept { spare_.push_back(std::move(memory)); }

 private:
  Memory& memory_;
  std::vector<std::unique_ptr<Arena>> spare_;
  std::size_t made_ = 0;  ///< arenas; spare_ has room for all of them
};

/// A table in the device's memory, which it holds until it ends; the pool outlives it.
template <class Segment>
class DeviceTable {
 public:
  /// Sends the table in stream order.
  DeviceTable(TablePool& pool, const SliceList& slices, const TileTable<Segment>& table);
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;
  ~DeviceTable();

  [[nodiscard]] const DeviceSlice* slices() const { return slices_; }
  [[nodiscard]] const TileEntry* tiles() const { return tiles_; }
  [[nodiscard]] const Segment* segments() const { return segments_; }
  /// Tiles to work on: all of them, or those that meet something.
  [[nodiscard]] int tile_count(bool all) const { return all ? tile_count_ : busy_; }

 private:
  const DeviceSlice* slices_ = nullptr;
  const TileEntry* tiles_ = nullptr;
  const Segment* segments_ = nullptr;
  int tile_count_ = 0, busy_ = 0;
  TablePool* pool_;
  std::unique_ptr<Arena> memory_;
};

}  // namespace usp::kernels::tiles
