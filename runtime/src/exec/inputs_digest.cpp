// SPDX-License-Identifier: Apache-2.0
#include "inputs_digest.hpp"

#include "usp/base/digest.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace usp {
namespace {

/// Replicated tokens are the first rows of a tensor.
[[nodiscard]] std::uint64_t digest_of_rows(const kernels::ConstView& view,
                                           const std::vector<Range>& replicated) {
  i64 rows = 0;
  for (const Range& range : replicated) rows += range.size();
  Digest d;
  for (i64 b = 0; b < view.batch; ++b)
    for (i64 row = 0; row < std::min(rows, view.rows); ++row)
      for (i64 head = view.heads.begin; head < view.heads.end; ++head)
        d.add(digest_of_bytes(view.at(b, row, head),
                              static_cast<std::size_t>(view.width * bytes_of(view.type))));
  return d.value();
}

}  // namespace

std::uint64_t digest_of_lists(const AttentionPlan& plan, const AttentionInputs& in, kernels::Memory& memory,
                              DigestOf what) {
  Digest d;
  const auto add = [&](const void* values, i64 bytes) {
    if (values == nullptr) return;
    if (what == DigestOf::addresses) {
      d.add(reinterpret_cast<std::uintptr_t>(values));
      return;
    }
    if (memory.stream() == nullptr) {
      d.bytes({static_cast<const char*>(values), static_cast<std::size_t>(bytes)});
      return;
    }
    std::string content(static_cast<std::size_t>(bytes), '\0');
    memory.to_host(content.data(), static_cast<const std::byte*>(values), bytes);
    memory.synchronize();
    d.bytes(content);
  };
  const i64 heads = plan.shape.query_heads;
  add(in.sink, heads * bytes_of(in.sink_type));
  add(in.alibi_slopes, heads * static_cast<i64>(sizeof(double)));
  if (in.blocks != nullptr) add(in.blocks->admitted, heads * in.blocks->rows * in.blocks->columns);
  if (plan.score.dropout != 0) d.add(in.dropout_seed).add(in.layer);
  return d.value();
}

std::uint64_t digest_of_replicated_rows(const AttentionPlan& plan, const AttentionInputs& in) {
  return Digest()
      .add(digest_of_rows(in.q, plan.replicated_q))
      .add(digest_of_rows(in.k, plan.replicated_k))
      .add(digest_of_rows(in.v, plan.replicated_k))
      .value();
}

}  // namespace usp
