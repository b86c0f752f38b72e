// SPDX-License-Identifier: Apache-2.0
#include "logits.hpp"
#include "passes.hpp"

namespace usp::kernels::cpu {
namespace {

/// Query panels of one head whose probabilities are summed into dK and dV at once.
constexpr i64 max_panels = 4;

template <class T>
class Backward {
 public:
  Backward(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args)
      : ops_(ops),
        a_(args),
        logits_(ops, args.scope),
        tile_keys_(keys_per_tile(ops)),
        width_(ops.max_vectors * ops.lanes),
        dqk_strips_(ceil_to(args.k.width, ops.strip)),
        dqk_columns_(ceil_to(args.k.width, ops.lanes)),
        dv_columns_(ceil_to(args.v.width, ops.lanes)) {
    scratch.divide([this](Scratch& s) { cut(s); });
  }

  void run() {
    const AttendScope& scope = a_.scope;
    const Range kv_heads = scope.kv_heads();
    for (i64 n = 0; n < scope.slice_count; ++n)
      for (i64 b = 0; b < a_.q.batch; ++b)
        for (i64 kv = kv_heads.begin; kv < kv_heads.end; ++kv) {
          slice_ = &scope.slices[n];
          batch_ = b;
          kv_ = kv;
          logits_.begin(*slice_, b);
          for (i64 key = 0; key < slice_->k_count; key += tile_keys_)
            grad_tile({key, std::min(key + tile_keys_, slice_->k_count)},
                      readers_of(kv, scope.query_heads, scope.group));
        }
  }

 private:
  void cut(Scratch& s) {
    const i64 rows = max_panels * width_;
    logits_.cut(s);
    s.take(panels_, max_panels);
    s.take(seen_, max_panels);
    s.take(rows_, rows);
    s.take(dead_, rows);
    s.take(lse_, rows);
    s.take(delta_, rows);
    s.take(key_strips_, tile_keys_ * a_.k.width);
    s.take(value_strips_, tile_keys_ * a_.v.width);
    s.take(key_elements_, element_stride(ops_, tile_keys_) * (dqk_strips_ / ops_.strip));
    s.take(dk_, tile_keys_ * dqk_columns_);
    s.take(dv_, tile_keys_ * dv_columns_);
    s.take(q_panels_, rows * a_.q.width);
    s.take(do_panels_, rows * a_.v.width);
    s.take(q_columns_, rows * dqk_columns_);
    s.take(do_columns_, rows * dv_columns_);
    s.take(p_, rows * tile_keys_);
    s.take(ds_, rows * tile_keys_);
    s.take(keep_, width_ * tile_keys_);
    s.take(slope_, width_ * tile_keys_);
    s.take(dq_, width_ * dqk_strips_);
    s.take(dq_rows_, width_ * dqk_strips_);
    s.take(staging_, std::max(tile_keys_, rows) * std::max(a_.q.width, a_.v.width));
  }

  /// All queries of the heads against one tile of keys.
  void grad_tile(Range tile, Range heads) {
    touched_ = {tile.size(), 0};
    for (i64 head = heads.begin; head < heads.end; ++head)
      for (i64 row = 0; row < slice_->q_count; row += max_panels * width_) {
        const Range rows{row, std::min(row + max_panels * width_, slice_->q_count)};
        if (may_see(*slice_, rows, tile)) grad_block(tile, head, rows);
      }
    for (i64 j = touched_.begin; j < touched_.end; ++j) {
      const i64 row = slice_->dk_row + tile.begin + j;
      ops_.blend(reinterpret_cast<T*>(a_.dk.at(batch_, row, kv_)), T{1}, dk_ + j * dqk_columns_, T{1},
                 a_.k.width);
      ops_.blend(reinterpret_cast<T*>(a_.dv.at(batch_, row, kv_)), T{1}, dv_ + j * dv_columns_, T{1},
                 a_.v.width);
    }
  }

  void grad_block(Range tile, i64 head, Range rows) {
    const int vectors = vectors_for(ops_, rows.size());
    const i64 columns = vectors * ops_.lanes;
    i64 count = 0;
    bool any = false;
    for (i64 row = rows.begin; row < rows.end; row += columns, ++count) {
      Panel& panel = panels_[count];
      panel = {head, row, std::min(columns, rows.end - row), vectors, nullptr, {}, {}};
      look(panel, *slice_, rows_ + count * columns);
      seen_[count] = logits_.seen(panel, tile);
      any = any || !seen_[count].empty();
    }
    if (!any) return;
    if (touched_.empty()) pack_keys(tile);
    pack_queries(head, rows, count * columns, vectors);
    for (i64 p = 0; p < count; ++p) {
      if (seen_[p].empty()) continue;
      touched_ = {std::min(touched_.begin, seen_[p].begin), std::max(touched_.end, seen_[p].end)};
      prefetch_queries(head, {rows.end, std::min(rows.end + rows.size(), slice_->q_count)}, p, count);
      grad_part(p, tile);
      a_.scope.progress();
    }
    add_outer(count, tile.size(), p_, do_columns_, dv_columns_, dv_);
    add_outer(count, tile.size(), ds_, q_columns_, dqk_columns_, dk_);
    a_.scope.progress();
  }

  void pack_keys(Range tile) {
    const Range rows{slice_->k_row + tile.begin, slice_->k_row + tile.end};
    const Rows<T> keys = rows_of(ops_, a_.k, batch_, kv_, rows, staging_);
    ops_.pack_strips(keys, key_strips_);
    ops_.pack_element_strips(keys, element_stride(ops_, tile_keys_), key_elements_);
    ops_.pack_strips(rows_of(ops_, a_.v, batch_, kv_, rows, staging_), value_strips_);
    std::fill_n(dk_, tile_keys_ * dqk_columns_, T{0});
    std::fill_n(dv_, tile_keys_ * dv_columns_, T{0});
  }

  /// The scale of dS = P (dP - delta) * scale rides on dO and delta.
  void pack_queries(i64 head, Range rows, i64 capacity, int vectors) {
    const double scale = a_.scope.terms->scale;
    const Range range{slice_->q_row + rows.begin, slice_->q_row + rows.end};
    for (i64 i = 0; i < capacity; ++i) {
      const double lse = i < rows.size() ? scalar(a_.lse, batch_, range.begin + i, head)
                                         : -std::numeric_limits<double>::infinity();
      dead_[i] = std::isinf(lse);
      lse_[i] = dead_[i] ? std::numeric_limits<T>::infinity() : static_cast<T>(lse * log2_e);
      delta_[i] = dead_[i] ? T{0} : static_cast<T>(scale * scalar(a_.delta, batch_, range.begin + i, head));
    }
    const Rows<T> q = rows_of(ops_, a_.q, batch_, head, range, staging_, dead_);
    ops_.pack_columns(q, capacity, q_columns_);
    pack_panels(q, logits_.query_factor(), vectors, q_panels_);
    const Rows<T> d_o = rows_of(ops_, a_.d_o, batch_, head, range, staging_, dead_);
    ops_.pack_columns(d_o, capacity, do_columns_);
    pack_panels(d_o, static_cast<T>(scale), vectors, do_panels_);
  }

  void pack_panels(const Rows<T>& rows, T factor, int vectors, T* panels) const {
    const i64 columns = vectors * ops_.lanes;
    for (i64 r = 0; r < rows.count; r += columns)
      ops_.pack_panel(
          {rows.data + r * rows.stride, rows.stride, std::min(columns, rows.count - r), rows.width}, factor,
          vectors, panels + r * rows.width);
  }

  /// Rows that follow soon: the next block's queries, and where this panel's dQ is added.
  void prefetch_queries(i64 head, Range next, i64 p, i64 panels) const {
    const Range rows = share({slice_->q_row + next.begin, slice_->q_row + next.end}, p, panels);
    prefetch(a_.q, batch_, head, rows);
    prefetch(a_.d_o, batch_, head, rows);
    const i64 own = slice_->q_row + panels_[p].first;
    prefetch(a_.dq, batch_, head, {own, own + panels_[p].count});
  }

  /// P and dS of one panel, and its dQ.
  void grad_part(i64 p, Range tile) {
    const Panel& panel = panels_[p];
    const Range seen = seen_[p];
    const i64 columns = panel.vectors * ops_.lanes;
    const ScoreTerms& terms = *a_.scope.terms;
    T* const probabilities = p_ + p * columns * tile_keys_;
    T* const ds = ds_ + p * columns * tile_keys_;
    T* const slope = terms.softcap != 0 ? slope_ : nullptr;
    logits_.compute(panel, tile, seen, key_strips_, a_.k.width, q_panels_ + p * columns * a_.q.width,
                    probabilities, slope);
    const PanelPart<T> part{probabilities, seen, panel.vectors};
    ops_.strip_product(product_of_keys(ops_, {ds, seen, panel.vectors}, value_strips_, a_.v.width,
                                       do_panels_ + p * columns * a_.v.width));
    if (slope == nullptr && terms.dropout == 0) {
      ops_.softmax_grad(part, ds, lse_ + p * columns, delta_ + p * columns);
    } else {
      if (terms.dropout != 0) logits_.keep(panel, tile, seen, keep_);
      ops_.softmax_grad_terms(part, ds, lse_ + p * columns, delta_ + p * columns,
                              {terms.dropout != 0 ? keep_ : nullptr, slope});
    }
    clear_to_strips(probabilities, seen, columns);
    clear_to_strips(ds, seen, columns);
    add_dq(panel, seen, ds, dead_ + p * columns);
  }

  /// Zeros from the seen keys out to the borders of their strips.
  void clear_to_strips(T* tile, Range seen, i64 columns) const {
    const i64 first = seen.begin / ops_.strip * ops_.strip, end = ceil_to(seen.end, ops_.strip);
    std::fill(tile + first * columns, tile + seen.begin * columns, T{0});
    std::fill(tile + seen.end * columns, tile + end * columns, T{0});
  }

  void add_dq(const Panel& panel, Range seen, const T* ds, const bool* dead) {
    const i64 columns = panel.vectors * ops_.lanes;
    StripProduct<T> product;
    product.strips = key_elements_ + seen.begin * ops_.strip;
    product.strip_stride = element_stride(ops_, tile_keys_);
    product.strip_count = dqk_strips_ / ops_.strip;
    product.depth = seen.size();
    product.panel = ds + seen.begin * columns;
    product.vectors = panel.vectors;
    product.out = dq_;
    ops_.strip_product(product);
    ops_.unpack_panel(dq_, dqk_strips_, panel.vectors, dq_rows_);
    for (i64 i = 0; i < panel.count; ++i) {
      if (dead[i] || panel.rows[i].empty()) continue;
      ops_.blend(reinterpret_cast<T*>(a_.dq.at(batch_, slice_->q_row + panel.first + i, panel.head)), T{1},
                 dq_rows_ + i * dqk_strips_, T{1}, a_.q.width);
    }
  }

  void add_outer(i64 panels, i64 keys, const T* tile, const T* rows, i64 width, T* out) const {
    OuterProduct<T> product;
    const i64 columns = panels_[0].vectors * ops_.lanes;
    product.tile = tile;
    product.panel_stride = columns * tile_keys_;
    product.panels = panels;
    product.vectors = panels_[0].vectors;
    product.keys = seen_;
    product.key_count = keys;
    product.rows = rows;
    product.row_capacity = panels * columns;
    product.width = width;
    product.out = out;
    product.out_stride = width;
    ops_.outer_product(product);
  }

  const TileOps<T>& ops_;
  const AttendGradArgs& a_;
  Logits<T> logits_;
  i64 tile_keys_, width_, dqk_strips_, dqk_columns_, dv_columns_;
  const schedule::Slice* slice_ = nullptr;
  i64 batch_ = 0, kv_ = 0;
  Range touched_;  ///< keys of the tile that dk_ and dv_ hold
  Panel* panels_ = nullptr;
  Range *seen_ = nullptr, *rows_ = nullptr;
  bool* dead_ = nullptr;
  T *lse_ = nullptr, *delta_ = nullptr;
  T *key_strips_ = nullptr, *value_strips_ = nullptr, *key_elements_ = nullptr, *dk_ = nullptr,
    *dv_ = nullptr;
  T *q_panels_ = nullptr, *do_panels_ = nullptr, *q_columns_ = nullptr, *do_columns_ = nullptr;
  T *p_ = nullptr, *ds_ = nullptr, *keep_ = nullptr, *slope_ = nullptr;
  T *dq_ = nullptr, *dq_rows_ = nullptr, *staging_ = nullptr;
};

}  // namespace

template <class T>
void compute(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args) {
  Backward<T>(ops, scratch, args).run();
}
template void compute(const TileOps<float>&, Scratch&, const AttendGradArgs&);
template void compute(const TileOps<double>&, Scratch&, const AttendGradArgs&);

template <class T>
void make_room(const TileOps<T>& ops, Scratch& scratch, const AttendGradArgs& args) {
  (void)Backward<T>(ops, scratch, args);
}
template void make_room(const TileOps<float>&, Scratch&, const AttendGradArgs&);
template void make_room(const TileOps<double>&, Scratch&, const AttendGradArgs&);

}  // namespace usp::kernels::cpu
