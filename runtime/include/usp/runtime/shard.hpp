// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"
#include "usp/schedule/layout.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/types.hpp"

#include <cstdint>
#include <vector>

/// How a training loop cuts a step's data by the layout of a mesh. All functions are local and work in host
/// memory. `tokens` are the global tokens of a rank's rows, in order: layout_tokens(), or
/// Prepared::q_tokens() and kv_tokens(), which also hold replicated tokens.
namespace usp {

/// Global tokens that a rank holds between calls: its rows of q, k, v and out, and of all that a model has
/// per token. cu_seqlens: borders of the step's documents, 0 to `tokens`; LayoutKind::balanced alone reads
/// more than the last one. Throws UsageError for a rank outside the mesh or degrees out of range,
/// InvalidInput for borders that are none of `tokens` tokens.
[[nodiscard]] std::vector<i64> layout_tokens(LayoutKind kind, i64 tokens, const Mesh& mesh, int rank,
                                             const std::vector<i64>& cu_seqlens);

/// The same as runs of tokens, whose slots count a rank's rows: their number grows with the layout's chunks.
[[nodiscard]] std::vector<Run> layout_runs(LayoutKind kind, i64 tokens, const Mesh& mesh, int rank,
                                           const std::vector<i64>& cu_seqlens);

/// Position of each row's token in its document, from 0: what rotary embeddings read. Throws InvalidInput for
/// a token beyond the borders.
[[nodiscard]] std::vector<i64> positions_of(const std::vector<i64>& tokens,
                                            const std::vector<i64>& cu_seqlens);

/// Label of each row: that of the token after it in its document, also where another rank holds that token;
/// `ignore_index` after a document's last one. `labels` has one entry per token of the step. Throws as
/// positions_of, and InvalidInput where `labels` are not those of the borders.
[[nodiscard]] std::vector<i64> shifted_labels(const std::vector<i64>& labels, const std::vector<i64>& tokens,
                                              const std::vector<i64>& cu_seqlens, i64 ignore_index = -100);

/// Row i of `rows` becomes row tokens[i] of `all`, whose row t is token t; values of another type are
/// rounded to nearest even. All other counts are equal (UsageError).
void gather_rows(const kernels::ConstView& all, const std::vector<i64>& tokens, const kernels::View& rows);
/// The other way: row tokens[i] of `all` becomes row i of `rows`; the other rows of `all` stay.
void scatter_rows(const kernels::ConstView& rows, const std::vector<i64>& tokens, const kernels::View& all);

}  // namespace usp
