// SPDX-License-Identifier: Apache-2.0
#include "logits.hpp"
#include "passes.hpp"

namespace usp::kernels::cpu {
namespace {

/// Query panels (of all heads that share a KV head) held against one packed tile of keys and values.
constexpr i64 max_panels = 64;

template <class T>
class Forward {
 public:
  Forward(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args)
      : ops_(ops),
        a_(args),
        logits_(ops, args.scope),
        tile_keys_(keys_per_tile(ops)),
        dv_(ceil_to(args.v.width, ops.strip)),
        width_(ops.max_vectors * ops.lanes) {
    scratch.divide([this](Scratch& s) { cut(s); });
  }

  void run() {
    const AttendScope& scope = a_.scope;
    const Range kv_heads = scope.kv_heads();
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a_.q.batch; ++b)
        for (i64 kv = kv_heads.begin; kv < kv_heads.end; ++kv)
          attend_slice(scope.slices[n], b, kv, readers_of(kv, scope.query_heads, scope.group));
  }

 private:
  void cut(Scratch& s) {
    logits_.cut(s);
    s.take(panels_, max_panels);
    s.take(rows_, max_panels * width_);
    s.take(queries_, max_panels * width_ * a_.q.width);
    s.take(out_, max_panels * width_ * dv_);
    s.take(top_, max_panels * width_);
    s.take(sum_, max_panels * width_);
    s.take(correction_, width_);
    s.take(key_strips_, tile_keys_ * a_.k.width);
    s.take(value_strips_, element_stride(ops_, tile_keys_) * (dv_ / ops_.strip));
    s.take(tile_, tile_keys_ * width_);
    s.take(keep_, tile_keys_ * width_);
    s.take(staging_, std::max(tile_keys_, width_) * std::max(a_.q.width, dv_));
  }

  void attend_slice(const schedule::Slice& s, i64 b, i64 kv, Range heads) {
    slice_ = &s;
    batch_ = b;
    kv_ = kv;
    logits_.begin(s, b);
    const i64 heads_at_once = std::min(heads.size(), max_panels);
    const i64 rows_at_once = max_panels / heads_at_once * width_;
    for (i64 row = 0; row < s.q_count; row += rows_at_once)
      for (i64 head = heads.begin; head < heads.end; head += heads_at_once)
        attend_block({head, std::min(head + heads_at_once, heads.end)},
                     {row, std::min(row + rows_at_once, s.q_count)});
  }

  void attend_block(Range heads, Range rows) {
    const Range keys = begin_panels(heads, rows);
    for (i64 at = keys.begin; at < keys.end; at += tile_keys_) {
      const Range tile{at, std::min(at + tile_keys_, keys.end)};
      bool packed = false;
      for (i64 p = 0; p < panel_count_; ++p) {
        const Range seen = logits_.seen(panels_[p], tile);
        if (seen.empty()) continue;
        if (!packed) pack(tile);
        packed = true;
        prefetch_keys({tile.end, std::min(tile.end + tile_keys_, keys.end)}, p);
        attend_part(p, tile, seen);
        a_.scope.progress();
      }
    }
    if (!keys.empty())
      for (i64 p = 0; p < panel_count_; ++p) merge(p);
  }

  /// Sets up the panels of a block; returns the keys they see.
  Range begin_panels(Range heads, Range rows) {
    panel_count_ = 0;
    const int vectors = vectors_for(ops_, rows.size());
    const i64 columns = vectors * ops_.lanes;
    Range keys{slice_->k_count, 0};
    for (i64 head = heads.begin; head < heads.end; ++head)
      for (i64 row = rows.begin; row < rows.end; row += columns) {
        Panel& panel = panels_[panel_count_];
        panel = {head, row, std::min(columns, rows.end - row), vectors, nullptr, {}, {}};
        look(panel, *slice_, rows_ + panel_count_ * width_);
        if (panel.any.empty()) continue;
        keys = {std::min(keys.begin, panel.any.begin), std::max(keys.end, panel.any.end)};
        begin_panel(panel, panel_count_++);
      }
    return keys;
  }

  void begin_panel(const Panel& panel, i64 p) {
    const i64 first = slice_->q_row + panel.first;
    ops_.pack_panel(rows_of(ops_, a_.q, batch_, panel.head, {first, first + panel.count}, staging_),
                    logits_.query_factor(), panel.vectors, queries_ + p * width_ * a_.q.width);
    std::fill_n(out_ + p * width_ * dv_, dv_ * panel.vectors * ops_.lanes, T{0});
    std::fill_n(top_ + p * width_, width_, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_ + p * width_, width_, T{0});
  }

  void pack(Range tile) {
    const Range rows{slice_->k_row + tile.begin, slice_->k_row + tile.end};
    ops_.pack_strips(rows_of(ops_, a_.k, batch_, kv_, rows, staging_), key_strips_);
    ops_.pack_element_strips(rows_of(ops_, a_.v, batch_, kv_, rows, staging_),
                             element_stride(ops_, tile_keys_), value_strips_);
  }

  /// Spreads the reading of the next tile over the panels of this one.
  void prefetch_keys(Range next, i64 p) const {
    const Range rows = share({slice_->k_row + next.begin, slice_->k_row + next.end}, p, panel_count_);
    prefetch(a_.k, batch_, kv_, rows);
    prefetch(a_.v, batch_, kv_, rows);
  }

  void attend_part(i64 p, Range tile, Range seen) {
    const Panel& panel = panels_[p];
    const PanelPart<T> part{tile_, seen, panel.vectors};
    const i64 columns = panel.vectors * ops_.lanes;
    T* const out = out_ + p * width_ * dv_;
    logits_.compute(panel, tile, seen, key_strips_, a_.k.width, queries_ + p * width_ * a_.q.width, tile_,
                    nullptr);
    if (ops_.softmax(part, top_ + p * width_, sum_ + p * width_, correction_))
      ops_.scale_columns(out, dv_, panel.vectors, correction_);
    if (a_.scope.terms->dropout != 0) {
      logits_.keep(panel, tile, seen, keep_);
      ops_.multiply(part, keep_);
    }
    StripProduct<T> product;
    product.strips = value_strips_ + seen.begin * ops_.strip;
    product.strip_stride = element_stride(ops_, tile_keys_);
    product.strip_count = dv_ / ops_.strip;
    product.depth = seen.size();
    product.panel = tile_ + seen.begin * columns;
    product.vectors = panel.vectors;
    product.out = out;
    product.add = true;
    ops_.strip_product(product);
  }

  /// Merges a finished panel into the carried o and lse of its rows, weighed in fp64.
  void merge(i64 p) {
    constexpr double ln_2 = 0.693147180559945309;
    const Panel& panel = panels_[p];
    ops_.unpack_panel(out_ + p * width_ * dv_, dv_, panel.vectors, staging_);
    for (i64 i = 0; i < panel.count; ++i) {
      const auto top = static_cast<double>(top_[p * width_ + i]),
                 sum = static_cast<double>(sum_[p * width_ + i]);
      if (sum == 0 || std::isinf(top)) continue;
      const i64 row = slice_->q_row + panel.first + i;
      const double old = scalar(a_.lse, batch_, row, panel.head), own = top * ln_2 + std::log(sum);
      const double most = std::max(old, own);
      const double lse = most + std::log(std::exp(old - most) + std::exp(own - most));
      const T carried = static_cast<T>(std::exp(old - lse));
      T* o = reinterpret_cast<T*>(a_.o.at(batch_, row, panel.head));
      if (carried == 0) std::fill_n(o, a_.v.width, T{0});
      ops_.blend(o, carried, staging_ + i * dv_, static_cast<T>(std::exp(top * ln_2 - lse)), a_.v.width);
      set_scalar(a_.lse, batch_, row, panel.head, lse);
    }
  }

  const TileOps<T>& ops_;
  const AttendArgs& a_;
  Logits<T> logits_;
  i64 tile_keys_, dv_, width_;
  const schedule::Slice* slice_ = nullptr;
  i64 batch_ = 0, kv_ = 0, panel_count_ = 0;
  Panel* panels_ = nullptr;
  Range* rows_ = nullptr;
  T *queries_ = nullptr, *out_ = nullptr, *top_ = nullptr, *sum_ = nullptr, *correction_ = nullptr;
  T *key_strips_ = nullptr, *value_strips_ = nullptr, *tile_ = nullptr, *keep_ = nullptr, *staging_ = nullptr;
};

}  // namespace

template <class T>
void compute(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args) {
  Forward<T>(ops, scratch, args).run();
}
template void compute(const TileOps<float>&, Scratch&, const AttendArgs&);
template void compute(const TileOps<double>&, Scratch&, const AttendArgs&);

template <class T>
void make_room(const TileOps<T>& ops, Scratch& scratch, const AttendArgs& args) {
  (void)Forward<T>(ops, scratch, args);
}
template void make_room(const TileOps<float>&, Scratch&, const AttendArgs&);
template void make_room(const TileOps<double>&, Scratch&, const AttendArgs&);

}  // namespace usp::kernels::cpu
