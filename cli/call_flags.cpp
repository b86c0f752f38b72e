// SPDX-License-Identifier: Apache-2.0
#include "call_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace usp::cli {

AttentionShape CallFlags::shape() const {
  AttentionShape shape;
  shape.batch = workload.batch;
  shape.q_tokens = shape.kv_tokens = workload.seq;
  shape.query_heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim_qk = head_dim;
  shape.head_dim_v = head_dim_v.value_or(head_dim);
  shape.dtype = workload.dtype;
  return shape;
}

Band CallFlags::band(i64 keys) const {
  workload.check_mask();
  if (!window) return workload.full ? Band{} : Band{0, unbounded};
  const i64 tokens = std::max(longest_document(workload.documents, workload.seq), keys);
  if (masks_none(window->before, window->after, tokens))
    throw UsageError(
        fmt::format("--window reaches over all {} tokens that a query could see, and masks none; "
                    "leave it out, or give a smaller one",
                    tokens));
  if (window->after) {
    if (workload.causal)
      throw UsageError(
          "--window BEFORE,AFTER shows a query later tokens, which --causal hides; leave one of them out");
    return {-*window->after, window->before};
  }
  if (workload.full)
    throw UsageError(
        "--window of one number looks back from a causal query; give both sides, --window BEFORE,AFTER, "
        "or leave out --full");
  return {0, window->before};
}

CallWindow parse_window(const std::string& text, const std::string& flag) {
  const std::vector<std::string> sides = split(text, ',');
  if (sides.size() > 2)
    throw UsageError(fmt::format("{} {}: give one number of tokens, or BEFORE,AFTER", flag, text));
  const auto side = [&](const std::string& word) {
    return trim(word) == "0" && sides.size() == 2 ? 0 : parse_tokens(trim(word), flag, max_tokens);
  };
  if (sides.size() == 1) return {side(sides[0]) - 1, std::nullopt};
  return {side(sides[0]), side(sides[1])};
}

Documents CallFlags::packed_documents() const {
  if (workload.documents.empty()) return Documents::single(workload.seq, workload.seq);
  check_documents(workload.documents, workload.seq);
  std::vector<i64> cu_seqlens{0};
  for (const i64 length : workload.documents) cu_seqlens.push_back(cu_seqlens.back() + length);
  return Documents::packed(std::move(cu_seqlens));
}

void add_call_flags(const Verb& verb, CallFlags& flags) {
  constexpr const char* name = "Attention";
  FlagGroup group(verb, name);
  group.number("--heads", flags.heads, "query heads", 1, max_heads)->required();
  group
      .number("--kv-heads", flags.kv_heads, "KV heads; as many as --heads for multi-head attention", 1,
              max_heads)
      ->required();
  group.number("--head-dim", flags.head_dim, "dimension of q and k of a head", 1, max_head_dim)->required();
  group.number("--head-dim-v", flags.head_dim_v, "dimension of v, where it differs", 1, max_head_dim);
  add_workload_flags(verb, flags.workload,
                     {name, "global tokens, e.g. 128k or 1M", "sequences",
                      "; times of fp32 and fp64 are uncalibrated", "37k,51k,40k", "no backward pass"})
      ->required();
  group.parsed(
      "--window", flags.window,
      "a causal query sees this many tokens, itself included; BEFORE,AFTER: so many on each side beside it",
      parse_window);
}

void note_guessed_type(DType dtype, const Calibration& calibration, const Invocation& invocation) {
  const i64 element_bytes = bytes_of(dtype);
  if (element_bytes > 2 && element_bytes != calibration.kernel.data().element_bytes)
    note(invocation,
         "times of " + std::string(word_of(dtype)) + " are a guess: no kernel of that type is calibrated");
}

void add_backend_flag(const Verb& verb, std::optional<Backend>& backend) {
  FlagGroup(verb, "Attention")
      .word("--backend", backend,
            "computes the blocks: " + word_choice<Backend>() +
                " (the fastest that the calibration measured; without one " +
                std::string(word_of(Backend{})) + ")");
}

}  // namespace usp::cli
