// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../contract/attention_cases.hpp"

/// Attention problems drawn from all features at once.
namespace usp::test {

/// A case and how a backend is asked for it.
struct Draw {
  Case problem;
  DType io = DType::bf16, d_o = DType::bf16;
  Order order = Order::batch_first;
  bool overwrite = false;
  bool rounded = false;  ///< with overwrite: results in the input type
  bool deterministic = false;
  std::size_t calls = 1;

  [[nodiscard]] std::string text() const {
    const Case& c = problem;
    std::string s = c.name + (io == DType::bf16 ? " bf16" : " fp16") + " d" + std::to_string(c.dqk) + "/" +
                    std::to_string(c.dv) + " heads " + std::to_string(c.query_heads.begin) + "-" +
                    std::to_string(c.query_heads.end) + "/" + std::to_string(c.group) + " batch " +
                    std::to_string(c.batch) + " rows " + std::to_string(c.q_rows) + "x" +
                    std::to_string(c.k_rows) + " slices " + std::to_string(c.slices.size());
    const auto add = [&](bool on, const char* what) { s += on ? std::string(" ") + what : std::string(); };
    add(overwrite, rounded ? "overwrite-rounded" : "overwrite");
    if (calls > 1) s += " calls " + std::to_string(calls);
    add(deterministic, "deterministic");
    add(d_o == DType::fp32, "dO-fp32");
    add(order == Order::padded, "padded");
    add(order == Order::head_first, "head-first");
    add(order == Order::sequence_first, "seq-first");
    add(c.softcap != 0, "softcap");
    add(c.dropout != 0, "dropout");
    add(c.alibi, "alibi");
    add(c.sink, "sink");
    add(c.blocks.block_q != 0, "blocks");
    return s;
  }
};

class Drawing {
 public:
  explicit Drawing(std::uint64_t seed) : random_(seed) {}
  i64 between(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random_); }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<i64>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

/// How a case is asked for, whatever it is.
inline void draw_use(Draw& d, Drawing& draw) {
  d.io = draw.of({DType::bf16, DType::bf16, DType::fp16});
  d.d_o = draw.chance(15) ? DType::fp32 : d.io;
  d.order = draw.of(
      {Order::batch_first, Order::batch_first, Order::sequence_first, Order::head_first, Order::padded});
  d.overwrite = draw.chance(50);
  d.rounded = draw.chance(60);
  d.deterministic = draw.chance(25);
  d.calls = d.problem.slices.size() > 1 && draw.chance(50) ? 2 : 1;
}

/// One band over all rows, cut into slices in several ways.
inline void draw_band(Case& c, Drawing& draw) {
  c.q_rows = draw.between(1, 330);
  c.k_rows = draw.between(1, 330);
  schedule::Slice s = rectangle(c.q_rows, c.k_rows);
  s.q_pos = draw.between(0, 400);
  s.k_pos = draw.between(0, 400);
  if (draw.chance(30)) s.q_step = s.k_step = draw.between(2, 5);
  if (draw.chance(10)) s.q_step = draw.between(1, 4), s.k_step = draw.between(1, 4);
  const i64 shift = s.q_pos - s.k_pos;
  switch (draw.between(0, 3)) {
    case 0:
      break;
    case 1:
      s.diff_min = draw.chance(50) ? 0 : shift + draw.between(-100, 100);
      break;
    case 2:
      s.diff_min = shift + draw.between(-90, 90);
      s.diff_max = s.diff_min + draw.between(0, 200);
      break;
    default:
      s.diff_max = shift + draw.between(-200, 200);
  }
  c.slices = {s};
  const i64 cut = draw.between(0, c.k_rows);
  if (draw.chance(40) && cut > 0 && cut < c.k_rows) {
    // The same rows meet two ranges of keys.
    schedule::Slice right = s;
    c.slices[0].k_count = cut;
    right.k_row = right.dk_row = cut;
    right.k_pos += cut * s.k_step;
    right.k_count -= cut;
    c.slices.push_back(right);
    if (draw.chance(50)) std::swap(c.slices[0], c.slices[1]);
  }
}

/// Causal documents after each other, some rows in none of them.
inline void draw_documents(Case& c, Drawing& draw) {
  i64 at = draw.between(0, 9);
  for (i64 n = draw.between(1, 8); n > 0; --n) {
    schedule::Slice s = banded(draw.between(1, 120), 0, 0, unbounded);
    s.k_count = s.q_count;
    s.q_row = s.k_row = s.dk_row = s.q_pos = s.k_pos = at;
    if (draw.chance(30)) s.diff_max = draw.between(3, 60);
    c.slices.push_back(s);
    at += s.q_count + (draw.chance(25) ? draw.between(1, 40) : 0);
  }
  c.q_rows = c.k_rows = at + draw.between(0, 5);
}

/// The tail of a block of keys, whose gradient holds only these rows.
inline void draw_pruned(Case& c, Drawing& draw) {
  draw_band(c, draw);
  c.slices.resize(1);
  schedule::Slice& s = c.slices[0];
  const i64 first = draw.between(0, c.k_rows - 1);
  s.k_row = first;
  s.k_pos += first * s.k_step;
  s.k_count = c.k_rows - first;
  s.dk_row = draw.between(0, 3);
  c.dk_rows = s.dk_row + s.k_count + draw.between(0, 70);
}

inline void draw_terms(Case& c, Drawing& draw) {
  c.sink = draw.chance(20);
  if (!draw.chance(45)) return;
  if (draw.chance(35)) c.softcap = draw.of({1.5, 20.0});
  if (draw.chance(35)) c.dropout = draw.of({0.1, 0.5});
  c.alibi = draw.chance(35);
  i64 queries = 1, keys = 1;
  for (const schedule::Slice& s : c.slices) {
    queries = std::max(queries, s.q_pos + s.q_count * s.q_step);
    keys = std::max(keys, s.k_pos + s.k_count * s.k_step);
  }
  if (draw.chance(35))
    c.blocks = block_mask(draw.of<i64>({5, 16, 64}), draw.of<i64>({7, 16, 128}), queries, keys);
}

inline Draw random_draw(std::uint64_t seed) {
  Drawing draw(seed);
  Draw d;
  Case& c = d.problem;
  c.seed = seed + 100;
  c.name = "draw" + std::to_string(seed);
  c.batch = draw.of<i64>({1, 1, 2});
  c.group = draw.of({1, 1, 2, 4});
  c.query_heads.begin = draw.between(0, 3);
  c.query_heads.end = c.query_heads.begin + draw.between(1, 5);
  c.dqk = c.dv = draw.of<i64>({8, 20, 32, 64, 64, 72, 96, 96, 128, 128, 128, 136, 192, 192, 256, 256});
  if (draw.chance(20)) c.dv = draw.of<i64>({16, 64, 128, 200});
  if (draw.chance(5)) c.dqk = 192, c.dv = 128;
  const i64 kind = draw.between(0, 9);
  if (kind < 5)
    draw_band(c, draw);
  else if (kind < 8)
    draw_documents(c, draw);
  else
    draw_pruned(c, draw);
  draw_terms(c, draw);
  draw_use(d, draw);
  return d;
}

/// The contract's own cases, each asked for in some way.
inline std::vector<Draw> contract_draws() {
  std::vector<Draw> all;
  for (const Case& c : all_cases()) {
    Drawing draw(c.seed);
    Draw d;
    d.problem = c;
    draw_use(d, draw);
    all.push_back(d);
  }
  return all;
}

}  // namespace usp::test
