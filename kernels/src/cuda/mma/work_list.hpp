// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "params.hpp"

#include "usp/kernels/memory.hpp"
#include "usp/schedule/slice.hpp"

#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace usp::kernels::mma {

/// A list of slices.
struct SliceList {
  const schedule::Slice* at = nullptr;
  i64 count = 0;
};

/// Tiles of rows with what each of them meets, on the host. Tiles that meet nothing come last.
template <class Segment>
struct TileTable {
  std::vector<TileEntry> tiles;
  std::vector<Segment> segments;
  int busy = 0;  ///< tiles that meet something
};

/// Tiles of query rows against key rows.
[[nodiscard]] TileTable<KeySegment> tiles_of_queries(const SliceList& slices, i64 q_rows, int tile_rows);
/// Tiles of gradient rows against query rows.
[[nodiscard]] TileTable<QuerySegment> tiles_of_keys(const SliceList& slices, i64 dk_rows, int tile_rows);

/// A table in the device's memory.
struct DeviceTable {
  const DeviceSlice* slices = nullptr;
  const TileEntry* tiles = nullptr;
  const void* segments = nullptr;
  int tile_count = 0, busy = 0;
};

/// Tables by the address of their slices, made and sent once, in stream order.
class WorkLists {
 public:
  explicit WorkLists(Memory& memory) : memory_(memory) {}
  [[nodiscard]] const DeviceTable& queries(const SliceList& slices, i64 q_rows, int tile_rows);
  [[nodiscard]] const DeviceTable& keys(const SliceList& slices, i64 dk_rows, int tile_rows);
  /// Tables are gone; their memory serves the next ones.
  void forget();

 private:
  enum class Side { queries, keys };
  using Key = std::tuple<const schedule::Slice*, i64, Side, i64, int>;
  struct Entry {
    DeviceTable table;
    std::unique_ptr<Arena> memory;
  };
  template <class Make>
  const DeviceTable& find(const Key& key, const Make& make);
  template <class Segment>
  [[nodiscard]] Entry send(const SliceList& slices, const TileTable<Segment>& table);

  Memory& memory_;
  std::map<Key, Entry> entries_;
  std::vector<std::unique_ptr<Arena>> spare_;
};

}  // namespace usp::kernels::mma
