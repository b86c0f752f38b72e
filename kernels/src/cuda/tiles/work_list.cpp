// SPDX-License-Identifier: Apache-2.0
#include "work_list.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/limits.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

namespace usp::kernels::tiles {
namespace {

using schedule::slice_detail::ceil_div;
using schedule::slice_detail::floor_div;

/// A step that nothing depends on may be anything; all others are positive.
[[nodiscard]] schedule::Slice with_steps(schedule::Slice s) {
  if (s.q_count == 1) s.q_step = 1;
  if (s.k_count == 1) s.k_step = 1;
  expects(s.q_step > 0 && s.k_step > 0, "a slice steps backwards");
  return s;
}

[[nodiscard]] Range intersect(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// Indices of keys that query i sees, not cut to the slice.
[[nodiscard]] Range keys_of(const schedule::Slice& s, i64 i) {
  const i64 x = s.q_pos + i * s.q_step - s.k_pos;
  return {ceil_div(x - s.diff_max, s.k_step), floor_div(x - s.diff_min, s.k_step) + 1};
}
/// Indices of queries that see key j, not cut to the slice.
[[nodiscard]] Range queries_of(const schedule::Slice& s, i64 j) {
  const i64 y = s.k_pos + j * s.k_step - s.q_pos;
  return {ceil_div(y + s.diff_min, s.q_step), floor_div(y + s.diff_max, s.q_step) + 1};
}

/// What the first to the last of a run of rows see: any of them, and all of them. Both ends grow along the
/// run.
struct Seen {
  Range any, all;
  Seen(Range first, Range last, i64 count) {
    any = intersect({first.begin, last.end}, {0, count});
    all = intersect({last.begin, first.end}, {0, count});
    if (all.empty()) all = {0, 0};
  }
};

[[nodiscard]] Range moved(Range r, i64 by) {
  return {r.begin + by, r.end + by};
}

/// Calls visit(tile, rows) for each tile that the rows touch. Tiles follow one another.
template <class Visit>
void each_tile(const std::vector<Range>& tiles, Range rows, const Visit& visit) {
  const auto ends_behind = [](i64 row, const Range& tile) { return row < tile.end; };
  auto tile = std::upper_bound(tiles.begin(), tiles.end(), rows.begin, ends_behind);
  for (; tile != tiles.end() && tile->begin < rows.end; ++tile)
    visit(static_cast<std::size_t>(tile - tiles.begin()), intersect(rows, *tile));
}

template <class Segment>
[[nodiscard]] i64 work_of(const std::vector<Segment>& segments) {
  i64 tiles = 0;
  for (const Segment& s : segments) tiles += (s.end - s.begin + streamed_rows - 1) / streamed_rows;
  return tiles;
}

/// Heavy tiles first: what is left for the end of the grid is small. Places hold rows and blocks.
template <class Segment>
[[nodiscard]] TileTable<Segment> in_order(const std::vector<std::vector<Segment>>& tiles,
                                          const std::vector<TileEntry>& places) {
  std::vector<std::size_t> order(tiles.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<i64> work(tiles.size());
  std::transform(tiles.begin(), tiles.end(), work.begin(), work_of<Segment>);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  TileTable<Segment> table;
  for (const std::size_t tile : order) {
    TileEntry entry = places[tile];
    entry.segment_begin = static_cast<int>(table.segments.size());
    table.segments.insert(table.segments.end(), tiles[tile].begin(), tiles[tile].end());
    entry.segment_end = static_cast<int>(table.segments.size());
    table.tiles.push_back(entry);
    if (!tiles[tile].empty()) ++table.busy;
  }
  return table;
}

[[nodiscard]] TileEntry place_of(const Range& rows, int block) {
  return {static_cast<int>(rows.begin), static_cast<int>(rows.end), 0, 0, 0, block};
}

/// Appends the segment of the query rows `any` in up to three parts, so that whole query tiles without a mask
/// are on their own; `all` are the rows that need none.
void append_cut(std::vector<QuerySegment>& segments, QuerySegment segment, Range any, Range all) {
  const i64 begin =
      any.begin + ceil_div(std::max<i64>(all.begin - any.begin, 0), streamed_rows) * streamed_rows;
  // Rows beyond the last are no rows: a last tile that ends early is whole.
  const i64 end = all.end == any.end
                      ? any.end
                      : begin + floor_div(std::max<i64>(all.end - begin, 0), streamed_rows) * streamed_rows;
  const auto append = [&](Range rows, bool masked) {
    if (rows.empty()) return;
    segment.begin = static_cast<int>(rows.begin), segment.end = static_cast<int>(rows.end);
    segment.masked = masked ? 1 : 0;
    segments.push_back(segment);
  };
  if (all.empty() || begin >= end) {
    append(any, true);
    return;
  }
  append({any.begin, begin}, true);
  append({begin, end}, false);
  append({end, any.end}, true);
}

/// Appends the elements on a boundary of 16 bytes; returns where they begin.
template <class T>
std::size_t append(std::vector<std::byte>& image, const std::vector<T>& elements) {
  const std::size_t at = image.size(), bytes = elements.size() * sizeof(T);
  image.resize((at + bytes + 15) / 16 * 16);
  if (bytes != 0) std::memcpy(image.data() + at, elements.data(), bytes);
  return at;
}

/// Tables of like sizes take turns in one memory: a power of two of bytes.
[[nodiscard]] i64 size_class(i64 bytes) {
  i64 size = 4096;
  while (size < bytes) size *= 2;
  return size;
}

/// Segments of a tile that mean the same key rows load them together; keys that lie apart are loaded by
/// turns.
void join_loads(std::vector<QuerySegment>& segments) {
  std::stable_sort(segments.begin(), segments.end(), [](const QuerySegment& a, const QuerySegment& b) {
    return std::tie(a.shift, a.load_begin) < std::tie(b.shift, b.load_begin);
  });
  for (std::size_t first = 0; first < segments.size();) {
    std::size_t end = first;
    int reach = segments[first].load_end;
    while (end < segments.size() && segments[end].shift == segments[first].shift &&
           segments[end].load_begin <= reach)
      reach = std::max(reach, segments[end++].load_end);
    for (std::size_t i = first; i < end; ++i)
      segments[i].load_begin = segments[first].load_begin, segments[i].load_end = reach;
    first = end;
  }
}

}  // namespace

std::vector<Range> even_tiles(i64 rows, int tile_rows) {
  expects(rows <= max_gpu_rows, "check_gpu_rows comes before a view of so many rows");
  std::vector<Range> tiles;
  for (i64 row = 0; row < rows; row += tile_rows) tiles.push_back({row, std::min(row + tile_rows, rows)});
  return tiles;
}

TileTable<KeySegment> tiles_of_queries(const SliceList& slices, const std::vector<Range>& row_tiles) {
  std::vector<std::vector<KeySegment>> tiles(row_tiles.size());
  for (i64 n = 0; n < slices.count; ++n) {
    const schedule::Slice& given = slices.at[n];
    if (given.q_count <= 0 || given.k_count <= 0) continue;
    const schedule::Slice s = with_steps(given);
    each_tile(row_tiles, {s.q_row, s.q_row + s.q_count}, [&](std::size_t tile, Range rows) {
      const Seen seen(keys_of(s, rows.begin - s.q_row), keys_of(s, rows.end - 1 - s.q_row), s.k_count);
      if (seen.any.empty()) return;
      const bool whole = rows.size() == row_tiles[tile].size();
      const Range any = moved(seen.any, s.k_row), all = whole ? moved(seen.all, s.k_row) : Range{0, 0};
      tiles[tile].push_back({static_cast<int>(n),
                             static_cast<int>(any.begin),
                             static_cast<int>(any.end),
                             static_cast<int>(all.begin),
                             static_cast<int>(all.end),
                             slices.block_of(n),
                             {}});
    });
  }
  std::vector<TileEntry> places;
  for (const Range& rows : row_tiles) places.push_back(place_of(rows, 0));
  return in_order(tiles, places);
}

TileTable<QuerySegment> tiles_of_keys(const SliceList& slices,
                                      const std::vector<std::vector<Range>>& row_tiles, int tile_rows) {
  std::vector<std::size_t> first_tiles;
  std::vector<TileEntry> places;
  for (const std::vector<Range>& of_block : row_tiles) {
    const auto block = static_cast<int>(first_tiles.size());
    first_tiles.push_back(places.size());
    for (const Range& tile : of_block) places.push_back(place_of(tile, block));
  }
  std::vector<std::vector<QuerySegment>> tiles(places.size());
  for (i64 n = 0; n < slices.count; ++n) {
    const schedule::Slice& given = slices.at[n];
    if (given.q_count <= 0 || given.k_count <= 0) continue;
    const schedule::Slice s = with_steps(given);
    const auto block = static_cast<std::size_t>(slices.block_of(n));
    const std::size_t first_tile = first_tiles[block];
    each_tile(row_tiles[block], {s.dk_row, s.dk_row + s.k_count}, [&](std::size_t tile, Range rows) {
      const Seen seen(queries_of(s, rows.begin - s.dk_row), queries_of(s, rows.end - 1 - s.dk_row),
                      s.q_count);
      if (seen.any.empty()) return;
      const Range any = moved(seen.any, s.q_row);
      const Range all = rows.size() == tile_rows ? moved(seen.all, s.q_row) : Range{0, 0};
      QuerySegment segment{};
      segment.slice = static_cast<int>(n), segment.block = slices.block_of(n);
      segment.shift = static_cast<int>(s.k_row - s.dk_row);
      segment.load_begin = static_cast<int>(rows.begin), segment.load_end = static_cast<int>(rows.end);
      append_cut(tiles[first_tile + tile], segment, any, all);
    });
  }
  for (std::vector<QuerySegment>& tile : tiles) join_loads(tile);
  return in_order(tiles, places);
}

std::unique_ptr<Arena> TablePool::take(i64 bytes) {
  auto best = spare_.end();
  for (auto spare = spare_.begin(); spare != spare_.end(); ++spare)
    if ((*spare)->bytes() >= bytes && (best == spare_.end() || (*spare)->bytes() < (*best)->bytes()))
      best = spare;
  if (best == spare_.end()) {
    std::unique_ptr<Arena> memory = memory_.make_arena();
    memory->reserve(size_class(bytes));
    spare_.reserve(++made_);
    return memory;
  }
  std::swap(*best, spare_.back());
  std::unique_ptr<Arena> memory = std::move(spare_.back());
  spare_.pop_back();
  return memory;
}

template <class Segment>
DeviceTable<Segment>::DeviceTable(TablePool& pool, const SliceList& slices, const TileTable<Segment>& table)
    : tile_count_(static_cast<int>(table.tiles.size())), busy_(table.busy), pool_(&pool) {
  std::vector<DeviceSlice> device_slices;
  for (i64 n = 0; n < slices.count; ++n) {
    const schedule::Slice& given = slices.at[n];
    const schedule::Slice s = given.q_count > 0 && given.k_count > 0 ? with_steps(given) : schedule::Slice{};
    device_slices.push_back({s.q_pos, s.k_pos, s.q_step, s.k_step, s.diff_min, s.diff_max,
                             static_cast<int>(s.q_row), static_cast<int>(s.q_count),
                             static_cast<int>(s.k_row), static_cast<int>(s.k_count)});
  }
  std::vector<std::byte> image;
  const std::size_t slices_at = append(image, device_slices), tiles_at = append(image, table.tiles),
                    segments_at = append(image, table.segments);
  const auto bytes = static_cast<i64>(image.size());
  memory_ = pool.take(bytes);
  std::byte* const device = memory_->data();
  slices_ = reinterpret_cast<const DeviceSlice*>(device + slices_at);
  tiles_ = reinterpret_cast<const TileEntry*>(device + tiles_at);
  segments_ = reinterpret_cast<const Segment*>(device + segments_at);
  pool.memory().from_host(device, image.data(), bytes);
}

template <class Segment>
DeviceTable<Segment>::~DeviceTable() {
  pool_->give_back(std::move(memory_));
}

template class DeviceTable<KeySegment>;
template class DeviceTable<QuerySegment>;

}  // namespace usp::kernels::tiles
