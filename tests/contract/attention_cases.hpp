// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"

/// The shapes that every backend must get right.
namespace usp::test {

inline schedule::Slice rectangle(i64 q_count, i64 k_count) {
  schedule::Slice s;
  s.q_count = q_count;
  s.k_count = k_count;
  return s;
}

inline schedule::Slice banded(i64 q_count, i64 k_count, i64 diff_min, i64 diff_max) {
  schedule::Slice s = rectangle(q_count, k_count);
  s.diff_min = diff_min;
  s.diff_max = diff_max;
  return s;
}

inline Case one_slice(const char* name, const schedule::Slice& s, i64 head_dim = 8) {
  Case c;
  c.name = name;
  c.q_rows = s.q_row + s.q_count;
  c.k_rows = s.k_row + s.k_count;
  c.dqk = c.dv = head_dim;
  c.slices = {s};
  return c;
}

/// Every slice kind, at odd sizes, within a tile and over several.
inline void add_slices(std::vector<Case>& all) {
  all.push_back(one_slice("full_odd", rectangle(37, 53)));
  all.push_back(one_slice("full_tiles", rectangle(131, 301), 20));
  all.push_back(one_slice("causal_odd", banded(45, 45, 0, unbounded)));
  all.push_back(one_slice("causal_tiles", banded(307, 307, 0, unbounded), 16));
  all.push_back(one_slice("inverse_causal", banded(61, 75, -unbounded, -3)));
  all.push_back(one_slice("window", banded(119, 119, 0, 16)));
  all.push_back(one_slice("window_both_ways", banded(87, 290, -140, -20)));
  all.push_back(one_slice("one_row", banded(1, 91, -50, unbounded)));
  all.push_back(one_slice("one_key", banded(50, 1, 20, 40)));
  all.push_back(one_slice("one_pair", rectangle(1, 1)));
  // Of a single probability of 1 the gradient is zero: a sink gives these something to be compared with.
  all[all.size() - 1].sink = all[all.size() - 2].sink = true;
  schedule::Slice s = banded(65, 43, 0, unbounded);
  s.q_pos = 2;
  s.k_pos = 1;
  s.q_step = s.k_step = 3;
  all.push_back(one_slice("stripe", s));
  s.q_step = 2;
  s.k_step = 5;
  s.diff_max = 60;
  all.push_back(one_slice("unequal_steps", s));
  s = banded(70, 66, -10, 900);
  s.q_pos = 1000000;
  s.k_pos = 999500;
  s.q_row = 9;
  s.k_row = 4;
  s.q_step = s.k_step = 7;
  all.push_back(one_slice("far_positions", s));
  s = banded(40, 30, 0, unbounded);
  s.q_pos = 5;
  s.k_pos = 17;
  s.q_row = 11;
  s.k_row = 21;
  s.dk_row = 3;
  Case pruned = one_slice("pruned_rows", s);
  pruned.q_rows += 5;
  pruned.k_rows += 6;
  pruned.dk_rows = 34;
  all.push_back(pruned);
  // Gradient rows that are neighbours, of keys that are not.
  Case apart = one_slice("keys_apart", banded(150, 60, 0, unbounded), 64);
  schedule::Slice other = banded(150, 70, -20, 90);
  other.k_row = other.k_pos = 100;
  other.dk_row = 60;
  apart.slices.push_back(other);
  apart.query_heads = {0, 2};
  apart.group = 2;
  apart.k_rows = 180;
  apart.dk_rows = 140;
  all.push_back(apart);
  Case tiny = one_slice("tiny_slices", rectangle(1, 1));
  tiny.q_rows = tiny.k_rows = 90;
  tiny.slices.clear();
  for (i64 at = 0, n = 1; at + n <= 90; at += n, n = n % 4 + 1) {
    schedule::Slice d = banded(n, n, 0, unbounded);
    d.q_row = d.q_pos = d.k_row = d.k_pos = d.dk_row = at;
    tiny.slices.push_back(d);
  }
  all.push_back(tiny);
}

inline void add_heads(std::vector<Case>& all) {
  for (const int group : {1, 2, 3, 7}) {
    Case c = one_slice("group", banded(41, 41, 0, unbounded));
    c.name += std::to_string(group);
    c.group = group;
    c.query_heads = {0, 2 * group};
    all.push_back(c);
  }
  Case torn = one_slice("kv_group_spans_ranks", banded(33, 50, -20, 30));
  torn.group = 4;
  torn.query_heads = {3, 9};
  all.push_back(torn);
  Case many = one_slice("multi_query", banded(26, 26, 0, unbounded));
  many.group = 37;
  many.query_heads = {0, 37};
  all.push_back(many);
  for (const i64 width : {1, 3, 13, 64, 80, 128, 256}) {
    Case c = one_slice("head_dim_", banded(29, 31, -4, unbounded), width);
    c.name += std::to_string(width);
    all.push_back(c);
  }
  for (const auto& [dqk, dv] : {std::pair<i64, i64>{192, 128}, {5, 24}, {24, 7}}) {
    Case c = one_slice("dims_", banded(34, 34, 0, unbounded));
    c.name += std::to_string(dqk) + "_" + std::to_string(dv);
    c.dqk = dqk;
    c.dv = dv;
    all.push_back(c);
  }
}

/// A softcap with head dims of every kernel, in tiles that are masked and some that are not.
inline void add_capped_heads(std::vector<Case>& all) {
  for (const auto& [dqk, dv] : {std::pair<i64, i64>{64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
    Case c = one_slice("softcap_", banded(70, 330, -230, unbounded), dqk);
    c.name += std::to_string(dqk) + "_" + std::to_string(dv);
    c.dv = dv;
    c.softcap = 1.5;
    c.query_heads = {0, 2}, c.group = 2;
    all.push_back(c);
  }
}

inline kernels::BlockMask block_mask(i64 block_q, i64 block_k, i64 queries, i64 keys) {
  return {block_q, block_k, (queries + block_q - 1) / block_q, (keys + block_k - 1) / block_k, nullptr};
}

inline void add_features(std::vector<Case>& all) {
  Case base = one_slice("", banded(57, 57, 0, unbounded), 12);
  base.query_heads = {1, 4};
  base.group = 2;
  base.batch = 2;
  const auto add = [&](const char* name, auto&& change) {
    Case c = base;
    c.name = name;
    change(c);
    all.push_back(c);
  };
  add("batch", [](Case&) {});
  add("softcap", [](Case& c) { c.softcap = 1.5; });
  add("softcap_large", [](Case& c) { c.softcap = 50; });
  add("alibi", [](Case& c) { c.alibi = true; });
  add("dropout", [](Case& c) { c.dropout = 0.3; });
  add("dropout_most", [](Case& c) { c.dropout = 0.9; });
  add("sink", [](Case& c) { c.sink = true; });
  add("blocks", [](Case& c) { c.blocks = block_mask(8, 16, 57, 57); });
  add("blocks_of_one", [](Case& c) { c.blocks = block_mask(1, 1, 57, 57); });
  add("blocks_tiles", [](Case& c) {
    c.q_rows = c.k_rows = 300;
    c.slices = {rectangle(300, 300)};
    c.blocks = block_mask(64, 128, 300, 300);
  });
  add("all_terms", [](Case& c) {
    c.softcap = 2;
    c.alibi = c.sink = true;
    c.dropout = 0.2;
    c.blocks = block_mask(5, 7, 57, 57);
  });
  add("all_terms_stripe", [](Case& c) {
    schedule::Slice& s = c.slices.front();
    s.q_step = s.k_step = 3;
    s.k_pos = 2;
    c.softcap = 2;
    c.alibi = c.sink = true;
    c.dropout = 0.2;
    c.blocks = block_mask(5, 7, 57 * 3, 57 * 3 + 2);
  });
  add("peaked", [](Case& c) { c.magnitude = 3; });
}

inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  add_slices(all);
  add_heads(all);
  add_capped_heads(all);
  add_features(all);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = i + 1;
  return all;
}

}  // namespace usp::test
