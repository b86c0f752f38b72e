// SPDX-License-Identifier: Apache-2.0
// The table of what each backend can do: every rule refuses what it is about, and nothing beside it.
#include "usp/schedule/kernel_traits.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace usp {
namespace {

CallTraits plain() {
  CallTraits call;
  call.dqk = call.dv = 128;
  call.query_heads = {0, 8};
  call.group = 4;
  return call;
}

template <class Change>
UnsupportedReason cudnn_refuses(Change&& change) {
  CallTraits call = plain();
  change(call);
  return unsupported_reason(kernel_traits(Backend::cudnn), call);
}

TEST(KernelTraits, RowsStandInTheOrderOfBackends) {
  for (const Backend backend : {Backend::cpu, Backend::mma, Backend::cudnn})
    EXPECT_EQ(kernel_traits(backend).backend, backend);
}

TEST(KernelTraits, EveryRefusalHasOneNameAndAText) {
  std::set<std::string> names, texts;
  for (const Word<UnsupportedReason>& word : word_list<UnsupportedReason>()) {
    EXPECT_TRUE(names.insert(std::string(word.text)).second) << word.text;
    EXPECT_TRUE(texts.insert(text_of(word.value)).second) << word.text;
    EXPECT_EQ(word_of(parse_word<UnsupportedReason>(word.text, "why")), word.text);
    EXPECT_EQ(names.size(), static_cast<std::size_t>(word.value) + 1) << "not in the order of the enum";
  }
  EXPECT_EQ(word_of(UnsupportedReason::no_graph), "no_graph");
  EXPECT_STREQ(text_of(UnsupportedReason::none), "");
}

TEST(KernelTraits, CudnnCallsForward) {
  EXPECT_EQ(cudnn_refuses([](CallTraits&) {}), UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.type = DType::fp32; }), UnsupportedReason::dtype);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.type = DType::fp16; }), UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.softcap = true; }), UnsupportedReason::softcap);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.alibi = true; }), UnsupportedReason::alibi);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dropout = true; }), UnsupportedReason::dropout);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.block_mask = true; }), UnsupportedReason::block_mask);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.query_heads = {2, 8}; }), UnsupportedReason::kv_group_spans_ranks);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.query_heads = {4, 6}; }), UnsupportedReason::kv_group_spans_ranks);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dqk = 100; }), UnsupportedReason::head_dim_step);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dv = 256; }), UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dv = 264; }), UnsupportedReason::head_dim);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dqk = 160, c.deterministic = true, c.has_o = false; }),
            UnsupportedReason::none);
}

TEST(KernelTraits, CudnnCallsBackward) {
  const auto refuses = [](auto&& change) {
    return cudnn_refuses([&](CallTraits& c) {
      c.backward = true;
      change(c);
    });
  };
  EXPECT_EQ(refuses([](CallTraits&) {}), UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = c.dv = 256; }), UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = c.dv = 256, c.compute_major = 8; }), UnsupportedReason::head_dim);
  EXPECT_EQ(refuses([](auto& c) { c.compute_major = 8; }), UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = 160; }), UnsupportedReason::unequal_head_dims);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = 192; }), UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.has_o = false; }), UnsupportedReason::missing_o);
  EXPECT_EQ(refuses([](auto& c) { c.deterministic = true; }), UnsupportedReason::deterministic);
}

TEST(KernelTraits, OtherBackendsTakeAllRules) {
  CallTraits call = plain();
  call.softcap = call.alibi = call.dropout = call.block_mask = call.backward = call.deterministic = true;
  call.has_o = false;
  call.query_heads = {1, 3};
  call.dqk = 99;
  call.compute_major = 8;
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::cpu), call), UnsupportedReason::none);
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::mma), call), UnsupportedReason::none);
  call.dqk = 257;
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::cpu), call), UnsupportedReason::none);
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::mma), call), UnsupportedReason::head_dim);
  call.type = DType::fp64;
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::cpu), call), UnsupportedReason::none);
  EXPECT_EQ(unsupported_reason(kernel_traits(Backend::mma), call), UnsupportedReason::dtype);
}

BlockSplit divided(const std::vector<Slice>& slices) {
  return split_into_blocks(kernel_traits(Backend::cudnn), slices.data(), static_cast<i64>(slices.size()),
                           true);
}

/// Causal by its rows.
Slice triangle(i64 first, i64 rows) {
  Slice s;
  s.q_row = s.q_pos = s.k_row = s.k_pos = s.dk_row = first;
  s.q_count = s.k_count = rows;
  s.diff_min = 0;
  return s;
}

TEST(KernelTraits, BlocksOfOneRowAreLeft) {
  const BlockSplit share = divided({triangle(0, 8), triangle(8, 1)});
  EXPECT_EQ(share.blocks.size(), 1U);
  EXPECT_EQ(share.rest.size(), 1U);
  EXPECT_EQ(share.why, UnsupportedReason::single_row);
}

TEST(KernelTraits, WindowsOfMoreQueriesThanKeysAreLeft) {
  Slice window = triangle(0, 64);
  window.k_count = 40;
  window.diff_min = 10;
  window.diff_max = 20;
  EXPECT_EQ(divided({window}).why, UnsupportedReason::wide_window);
  window.k_count = 64;
  EXPECT_EQ(divided({window}).why, UnsupportedReason::none);
  EXPECT_EQ(divided({window}).blocks.size(), 1U);
}

TEST(KernelTraits, ManySlicesAndManyBlocksAreLeftWhole) {
  std::vector<Slice> documents;
  for (i64 i = 0; i < 8; ++i) documents.push_back(triangle(4 * i, 4));
  EXPECT_EQ(divided(documents).blocks.size(), 8U);
  documents.push_back(triangle(32, 4));
  EXPECT_EQ(divided(documents).why, UnsupportedReason::many_blocks);
  EXPECT_EQ(divided(documents).rest.size(), 9U);
  std::vector<Slice> rows;
  for (i64 i = 0; i < 33; ++i) {
    Slice s = triangle(4 * i, 4);
    s.k_row = s.k_pos = s.dk_row = 0;
    rows.push_back(s);
  }
  EXPECT_EQ(divided(rows).why, UnsupportedReason::many_slices);
  rows.pop_back();
  EXPECT_EQ(divided(rows).why, UnsupportedReason::none) << "32 full blocks of rows are one";
}

}  // namespace
}  // namespace usp
