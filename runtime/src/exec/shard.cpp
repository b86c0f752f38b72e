// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/shard.hpp"

#include "require.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/regions.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

void check_rank(const Mesh& mesh, int rank) {
  check_mesh(mesh);
  require(rank >= 0 && rank < mesh.size(),
          fmt::format("rank {} is outside the mesh, whose ranks are 0 to {}", rank, mesh.size() - 1));
}

void check_borders(const std::vector<i64>& cu_seqlens) {
  if (cu_seqlens.size() < 2 || cu_seqlens.front() != 0 ||
      !std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()))
    throw InvalidInput({"batch", 0, "cu_seqlens"},
                       "cu_seqlens are no borders of documents: they begin at 0, do not decrease and have an "
                       "end for every document");
}

/// Document of a token.
[[nodiscard]] Range document_of(i64 token, const std::vector<i64>& cu_seqlens) {
  if (token < 0 || token >= cu_seqlens.back())
    throw InvalidInput(
        {"batch", 0, "tokens"},
        fmt::format("token {} is beyond the documents, which end at {}; give the borders of the "
                    "step that the tokens are of",
                    token, cu_seqlens.back()));
  const auto end = std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), token);
  return {*(end - 1), *end};
}

void check_alike(const kernels::ConstView& rows, const std::vector<i64>& tokens,
                 const kernels::ConstView& all) {
  require(rows.batch == all.batch && rows.heads.size() == all.heads.size() && rows.width == all.width,
          "the tensor of a rank's rows and that of all tokens differ in more than their rows");
  require(rows.rows == static_cast<i64>(tokens.size()),
          fmt::format("the tensor has {} rows for {} tokens", rows.rows, tokens.size()));
  for (const i64 token : tokens)
    require(token >= 0 && token < all.rows,
            fmt::format("token {} is outside the tensor of {} tokens", token, all.rows));
}

[[nodiscard]] kernels::ViewRegion row(i64 index, Range heads) {
  return {{index, index + 1}, heads};
}

}  // namespace

std::vector<Run> layout_runs(LayoutKind kind, i64 tokens, const Mesh& mesh, int rank,
                             const std::vector<i64>& cu_seqlens) {
  check_rank(mesh, rank);
  if (tokens < 1 || tokens > max_tokens)
    throw InvalidInput({"batch", 0, "tokens"},
                       fmt::format("the step has {} tokens; it has 1 to {}", tokens, max_tokens));
  check_borders(cu_seqlens);
  if (cu_seqlens.back() != tokens)
    throw InvalidInput({"batch", 0, "cu_seqlens"},
                       fmt::format("the documents end at {}, the step has {} tokens; both are the same",
                                   cu_seqlens.back(), tokens));
  const SequenceLayout layout = make_layout(kind, tokens, mesh.ring(), mesh.ulysses, cu_seqlens);
  const int r = mesh.ring_of(rank);
  return layout.tokens_of(r, layout.home(r, mesh.ulysses_of(rank)));
}

std::vector<i64> layout_tokens(LayoutKind kind, i64 tokens, const Mesh& mesh, int rank,
                               const std::vector<i64>& cu_seqlens) {
  std::vector<i64> list;
  for (const Run& run : layout_runs(kind, tokens, mesh, rank, cu_seqlens))
    for (i64 n = 0; n < run.count; ++n) list.push_back(run.first + n * run.step);
  return list;
}

std::vector<i64> positions_of(const std::vector<i64>& tokens, const std::vector<i64>& cu_seqlens) {
  check_borders(cu_seqlens);
  std::vector<i64> positions;
  positions.reserve(tokens.size());
  for (const i64 token : tokens) positions.push_back(token - document_of(token, cu_seqlens).begin);
  return positions;
}

std::vector<i64> shifted_labels(const std::vector<i64>& labels, const std::vector<i64>& tokens,
                                const std::vector<i64>& cu_seqlens, i64 ignore_index) {
  check_borders(cu_seqlens);
  if (static_cast<i64>(labels.size()) != cu_seqlens.back())
    throw InvalidInput({"batch", 0, "labels"},
                       fmt::format("{} labels were given for documents of {} tokens; give one per token",
                                   labels.size(), cu_seqlens.back()));
  std::vector<i64> shifted;
  shifted.reserve(tokens.size());
  for (const i64 token : tokens) {
    const bool last = token + 1 == document_of(token, cu_seqlens).end;
    shifted.push_back(last ? ignore_index : labels[static_cast<std::size_t>(token + 1)]);
  }
  return shifted;
}

void gather_rows(const kernels::ConstView& all, const std::vector<i64>& tokens, const kernels::View& rows) {
  check_alike(rows, tokens, all);
  for (i64 i = 0; i < rows.rows; ++i)
    kernels::copy_region(all, row(tokens[static_cast<std::size_t>(i)], all.heads), rows, row(i, rows.heads),
                         WriteMode::overwrite);
}

void scatter_rows(const kernels::ConstView& rows, const std::vector<i64>& tokens, const kernels::View& all) {
  check_alike(rows, tokens, all);
  for (i64 i = 0; i < rows.rows; ++i)
    kernels::copy_region(rows, row(i, rows.heads), all, row(tokens[static_cast<std::size_t>(i)], all.heads),
                         WriteMode::overwrite);
}

}  // namespace usp
