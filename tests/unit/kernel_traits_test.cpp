// SPDX-License-Identifier: Apache-2.0
// The table of what each backend can do: every rule refuses what it is about, and nothing beside it.
#include "usp/schedule/kernel_traits.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace usp {
namespace {

schedule::CallTraits plain() {
  schedule::CallTraits call;
  call.dqk = call.dv = 128;
  call.query_heads = {0, 8};
  call.group = 4;
  return call;
}

template <class Change>
schedule::UnsupportedReason cudnn_refuses(Change&& change) {
  schedule::CallTraits call = plain();
  change(call);
  return schedule::unsupported_reason(schedule::kernel_traits(Backend::cudnn), call);
}

/// Files, flags and usp.h name backends by word and number.
TEST(Backends, AreListedInTheOrderOfTheCApi) {
  const std::vector<Backend> expected{Backend::cpu, Backend::mma, Backend::cudnn, Backend::hopper,
                                      Backend::hopper_cudnn};
  EXPECT_EQ(backends(), expected);
  EXPECT_EQ(Backend(), Backend::cpu);
  EXPECT_EQ(joined_words<Backend>(), "cpu, mma, cudnn, hopper, hopper_cudnn");
  for (const Backend backend : backends()) {
    EXPECT_EQ(backends()[index_of(backend)], backend);
    EXPECT_EQ(parse_word<Backend>(word_of(backend), "--backend"), backend);
    EXPECT_FALSE(backend->summary.empty());
  }
  EXPECT_EQ(gpu_backend_words(), "mma or cudnn or hopper or hopper_cudnn");
}

TEST(Backends, FallBackToOneThatTakesAllOfTheirHardware) {
  EXPECT_EQ(preferred_gpu_backend(), Backend::cudnn);
  EXPECT_EQ(preferred_gpu_backends(), (std::vector<Backend>{Backend::hopper_cudnn, Backend::cudnn}));
  EXPECT_EQ(last_fallback(Backend::cudnn), Backend::mma);
  EXPECT_EQ(last_fallback(Backend::cpu), Backend::cpu);
  EXPECT_TRUE(is_fallback(Backend::mma));
  EXPECT_EQ(fallback_of(Backend::cudnn, Pass::backward), Backend::mma);
  EXPECT_EQ(fallback_of(Backend::hopper_cudnn, Pass::forward), Backend::mma);
  EXPECT_EQ(fallback_of(Backend::hopper_cudnn, Pass::backward), Backend::hopper);
  EXPECT_FALSE(is_fallback(Backend::cudnn));
  for (const Backend backend : backends()) {
    if (backend->fallback == nullptr) continue;
    EXPECT_TRUE(last_fallback(backend)->takes.any_slices) << word_of(backend);
    EXPECT_EQ(last_fallback(backend)->on_gpu, backend->on_gpu) << word_of(backend);
  }
}

TEST(Backends, OfTwoPartsLeaveEachPassToOne) {
  EXPECT_EQ(Backend::hopper_cudnn.of(Pass::forward), Backend::hopper);
  EXPECT_EQ(Backend::hopper_cudnn.of(Pass::backward), Backend::cudnn);
  for (const Backend backend : backends()) {
    EXPECT_EQ(backend.has_parts(), backend.of(Pass::forward) != backend) << word_of(backend);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Backend part = backend.of(pass);
      EXPECT_FALSE(part.has_parts());
      EXPECT_EQ(last_fallback(part), last_fallback(backend)) << word_of(backend);
      EXPECT_EQ(part->on_gpu, backend->on_gpu);
      EXPECT_TRUE(part->rounds_results || !backend->rounds_results);
    }
  }
  EXPECT_TRUE(schedule::runs_on(Backend::hopper_cudnn, 9));
  for (const int major : {8, 10, 12}) EXPECT_FALSE(schedule::runs_on(Backend::hopper_cudnn, major)) << major;
  EXPECT_TRUE(schedule::runs_on(Backend::cudnn, 8));
}

TEST(KernelTraits, EveryRefusalHasOneNameAndAText) {
  std::set<std::string> names, texts;
  for (const Word<schedule::UnsupportedReason>& word : word_list<schedule::UnsupportedReason>()) {
    EXPECT_TRUE(names.insert(std::string(word.text)).second) << word.text;
    EXPECT_TRUE(texts.insert(schedule::text_of(word.value, Backend::cudnn)).second) << word.text;
    EXPECT_EQ(word_of(parse_word<schedule::UnsupportedReason>(word.text, "why")), word.text);
    EXPECT_EQ(names.size(), static_cast<std::size_t>(word.value) + 1) << "not in the order of the enum";
  }
  EXPECT_EQ(word_of(schedule::UnsupportedReason::no_graph), "no_graph");
  const auto text = [](schedule::UnsupportedReason why) { return schedule::text_of(why, Backend::cudnn); };
  EXPECT_EQ(text(schedule::UnsupportedReason::none), "");
  EXPECT_EQ(text(schedule::UnsupportedReason::head_dim_step),
            "the cuDNN backend supports head dims that are multiples of 8");
  EXPECT_EQ(text(schedule::UnsupportedReason::unequal_head_dims),
            "cuDNN's backward supports unequal head dims 192/128 only");
}

TEST(KernelTraits, CudnnCallsForward) {
  EXPECT_EQ(cudnn_refuses([](schedule::CallTraits&) {}), schedule::UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.type = DType::fp32; }), schedule::UnsupportedReason::dtype);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.type = DType::fp16; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.softcap = true; }), schedule::UnsupportedReason::softcap);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.alibi = true; }), schedule::UnsupportedReason::alibi);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dropout = true; }), schedule::UnsupportedReason::dropout);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.block_mask = true; }), schedule::UnsupportedReason::block_mask);
  EXPECT_EQ(cudnn_refuses([](auto& c) {
              c.query_heads = {2, 8};
            }),
            schedule::UnsupportedReason::kv_group_spans_ranks);
  EXPECT_EQ(cudnn_refuses([](auto& c) {
              c.query_heads = {4, 6};
            }),
            schedule::UnsupportedReason::kv_group_spans_ranks);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dqk = 100; }), schedule::UnsupportedReason::head_dim_step);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dv = 256; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dv = 264; }), schedule::UnsupportedReason::head_dim);
  EXPECT_EQ(cudnn_refuses([](auto& c) { c.dqk = 160, c.deterministic = true, c.has_o = false; }),
            schedule::UnsupportedReason::none);
}

TEST(KernelTraits, CudnnCallsBackward) {
  const auto refuses = [](auto&& change) {
    return cudnn_refuses([&](schedule::CallTraits& c) {
      c.backward = true;
      change(c);
    });
  };
  EXPECT_EQ(refuses([](schedule::CallTraits&) {}), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = c.dv = 256; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = c.dv = 256, c.compute_major = 8; }),
            schedule::UnsupportedReason::head_dim);
  EXPECT_EQ(refuses([](auto& c) { c.compute_major = 8; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = 160; }), schedule::UnsupportedReason::unequal_head_dims);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = 192; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.has_o = false; }), schedule::UnsupportedReason::missing_o);
  EXPECT_EQ(refuses([](auto& c) { c.deterministic = true; }), schedule::UnsupportedReason::deterministic);
}

TEST(KernelTraits, OtherBackendsTakeAllRules) {
  schedule::CallTraits call = plain();
  call.softcap = call.alibi = call.dropout = call.block_mask = call.backward = call.deterministic = true;
  call.has_o = false;
  call.query_heads = {1, 3};
  call.dqk = 99;
  call.compute_major = 8;
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::cpu), call),
            schedule::UnsupportedReason::none);
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::mma), call),
            schedule::UnsupportedReason::none);
  call.dqk = 257;
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::cpu), call),
            schedule::UnsupportedReason::none);
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::mma), call),
            schedule::UnsupportedReason::head_dim);
  call.type = DType::fp64;
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::cpu), call),
            schedule::UnsupportedReason::none);
  EXPECT_EQ(schedule::unsupported_reason(schedule::kernel_traits(Backend::mma), call),
            schedule::UnsupportedReason::dtype);
}

TEST(KernelTraits, HopperIsForItsArchitectureAlone) {
  const auto refuses = [](auto&& change) {
    schedule::CallTraits call = plain();
    change(call);
    return schedule::unsupported_reason(schedule::kernel_traits(Backend::hopper), call);
  };
  EXPECT_EQ(refuses([](auto&) {}), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.query_heads = {1, 3}; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.compute_major = 8; }), schedule::UnsupportedReason::architecture);
  EXPECT_EQ(refuses([](auto& c) { c.compute_major = 10; }), schedule::UnsupportedReason::architecture);
  EXPECT_EQ(refuses([](auto& c) { c.negative_scale = true; }), schedule::UnsupportedReason::negative_scale);
  EXPECT_EQ(refuses([](auto& c) { c.softcap = true; }), schedule::UnsupportedReason::none);
  EXPECT_EQ(refuses([](auto& c) { c.alibi = true; }), schedule::UnsupportedReason::alibi);
  EXPECT_EQ(refuses([](auto& c) { c.dqk = 132; }), schedule::UnsupportedReason::head_dim_step);
  EXPECT_EQ(refuses([](auto& c) { c.backward = c.deterministic = true; }), schedule::UnsupportedReason::none);
}

schedule::BlockSplit divided(const std::vector<schedule::Slice>& slices) {
  return schedule::split_into_blocks(schedule::kernel_traits(Backend::cudnn), slices.data(),
                                     static_cast<i64>(slices.size()), true);
}

/// Causal by its rows.
schedule::Slice triangle(i64 first, i64 rows) {
  schedule::Slice s;
  s.q_row = s.q_pos = s.k_row = s.k_pos = s.dk_row = first;
  s.q_count = s.k_count = rows;
  s.diff_min = 0;
  return s;
}

TEST(KernelTraits, BlocksOfOneRowAreLeft) {
  const schedule::BlockSplit share = divided({triangle(0, 8), triangle(8, 1)});
  EXPECT_EQ(share.blocks.size(), 1U);
  EXPECT_EQ(share.rest.size(), 1U);
  EXPECT_EQ(share.why, schedule::UnsupportedReason::single_row);
}

TEST(KernelTraits, WindowsOfMoreQueriesThanKeysAreLeft) {
  schedule::Slice window = triangle(0, 64);
  window.k_count = 40;
  window.diff_min = 10;
  window.diff_max = 20;
  EXPECT_EQ(divided({window}).why, schedule::UnsupportedReason::wide_window);
  window.k_count = 64;
  EXPECT_EQ(divided({window}).why, schedule::UnsupportedReason::none);
  EXPECT_EQ(divided({window}).blocks.size(), 1U);
}

TEST(KernelTraits, ManySlicesAndManyBlocksAreLeftWhole) {
  std::vector<schedule::Slice> documents;
  for (i64 i = 0; i < 8; ++i) documents.push_back(triangle(4 * i, 4));
  EXPECT_EQ(divided(documents).blocks.size(), 8U);
  documents.push_back(triangle(32, 4));
  EXPECT_EQ(divided(documents).why, schedule::UnsupportedReason::many_blocks);
  EXPECT_EQ(divided(documents).rest.size(), 9U);
  std::vector<schedule::Slice> rows;
  for (i64 i = 0; i < 33; ++i) {
    schedule::Slice s = triangle(4 * i, 4);
    s.k_row = s.k_pos = s.dk_row = 0;
    rows.push_back(s);
  }
  EXPECT_EQ(divided(rows).why, schedule::UnsupportedReason::many_slices);
  rows.pop_back();
  EXPECT_EQ(divided(rows).why, schedule::UnsupportedReason::none) << "32 full blocks of rows are one";
}

}  // namespace
}  // namespace usp
