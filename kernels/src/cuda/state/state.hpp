// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"
#include "usp/kernels/regions.hpp"

struct CUstream_st;

/// What is done to rows of results between blocks of attention. All of it is bound by memory bandwidth and
/// touches each byte once. Enqueued on the stream, whose device is current; views lie in its memory.
namespace usp::kernels::cuda {

/// DeltaArgs on the device, `sink` and `d_sink` included: d_o and o of bf16, fp16 or fp32. The gradient of
/// the sinks is summed in fp64 in a fixed order.
void launch_delta(const DeltaArgs& args, CUstream_st* stream);

/// A block's result that joins the carried state, row r of the block in row rows.begin + r of the state:
/// with w = 1 / (1 + exp(lse - lse_i)), o += w * (o_i - o) and lse = max + log1p(exp(-|lse - lse_i|)).
/// A row of the block with lse_i = -inf changes nothing, whatever its o_i.
struct MergeArgs {
  ConstView o_i, lse_i;  ///< o_i of bf16, fp16 or fp32; lse_i of fp32
  View o, lse;           ///< fp32
  Range rows, heads;
  bool overwrite = false;  ///< the state is (0, sink) whatever its memory holds; all its rows are written
  const double* sink = nullptr;  ///< with overwrite: per global head; null: -inf
};
void launch_merge(const MergeArgs& args, CUstream_st* stream);

/// to += from, or to = from: the rows of a block's gradient into `rows` of the whole one.
void launch_accumulate(const ConstView& from, const View& to, Range rows, Range heads, WriteMode mode,
                       CUstream_st* stream);

/// lse of some rows as [batch][head][row] of fp32, -inf as +inf: exp(s - lse) is then 0 for a row that saw
/// nothing.
void launch_pack_lse(const ConstView& lse, Range rows, Range heads, float* packed, CUstream_st* stream);

}  // namespace usp::kernels::cuda
