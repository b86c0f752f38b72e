// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"

#include <algorithm>
#include <array>
#include <deque>

/// A case whose keys are cut into a list of blocks, each in memory of its own.
namespace usp::test {

/// The part of a slice whose keys lie in a block's rows; key rows count from the block's first, gradient rows
/// stay.
inline schedule::Slice part_of_slice(const schedule::Slice& s, Range keys) {
  const i64 first = std::clamp<i64>(keys.begin - s.k_row, 0, s.k_count);
  const i64 end = std::clamp<i64>(keys.end - s.k_row, first, s.k_count);
  schedule::Slice part = s;
  part.k_row = s.k_row + first - keys.begin;
  part.k_pos += first * s.k_step, part.dk_row += first, part.k_count = end - first;
  return part;
}

/// The rows of a tensor of one block.
inline Tensor4 rows_of(const Tensor4& whole, Range rows) {
  const kernels::View v = whole.view();
  Tensor4 part(v.type, v.batch, rows.size(), v.heads, v.width);
  const std::vector<double> values = whole.values();
  const auto row = static_cast<long>(v.batch * v.heads.size() * v.width);
  part.set(std::vector<double>(values.begin() + rows.begin * row, values.begin() + rows.end * row));
  return part;
}

/// Forward, delta and backward of a list of blocks of keys. `fresh`: nothing is carried, and memory of
/// results holds NaN; else results are added to those of a Trial's beginning.
class BlockTrial {
 public:
  BlockTrial(const Case& problem, const Inputs& inputs, const std::vector<Range>& blocks, bool fresh,
             bool rounded = false)
      : trial(problem, inputs), fresh_(fresh) {
    const Case& c = problem;
    const DType type = inputs.q.view().type, result = rounded ? type : accumulator_of(type);
    trial.o = Tensor4(result, c.batch, c.q_rows, c.query_heads, c.dv);
    trial.dq = Tensor4(result, c.batch, c.q_rows, c.query_heads, c.dqk);
    for (const Range& rows : blocks) {
      Block& b = blocks_.emplace_back();
      b.k = rows_of(inputs.k, rows), b.v = rows_of(inputs.v, rows);
      b.dk = Tensor4(accumulator_of(type), c.batch, c.grad_rows(), c.kv_heads(), c.dqk);
      b.dv = Tensor4(accumulator_of(type), c.batch, c.grad_rows(), c.kv_heads(), c.dv);
      for (const schedule::Slice& s : c.slices)
        if (const schedule::Slice part = part_of_slice(s, rows); part.k_count > 0) b.slices.push_back(part);
      begin(b.dk, 0), begin(b.dv, 0);
    }
    begin(trial.o, 0), begin(trial.dq, 0);
    if (fresh) trial.lse.set(std::numeric_limits<double>::quiet_NaN());
  }

  [[nodiscard]] std::vector<kernels::AttendArgs> attend_args() const {
    std::vector<kernels::AttendArgs> list;
    for (const Block& b : blocks_) {
      kernels::AttendArgs a = trial.attend_args(0, 0);
      a.k = b.k.view(), a.v = b.v.view();
      a.scope.slices = b.slices.data(), a.scope.slice_count = static_cast<i64>(b.slices.size());
      a.overwrite = fresh_ && list.empty();
      if (a.overwrite && trial.c.sink) a.sink = trial.terms.sinks.data();
      list.push_back(a);
    }
    return list;
  }
  [[nodiscard]] std::vector<kernels::AttendGradArgs> grad_args() const {
    std::vector<kernels::AttendGradArgs> list;
    for (const Block& b : blocks_) {
      kernels::AttendGradArgs a = trial.grad_args(0, 0);
      a.k = b.k.view(), a.v = b.v.view(), a.dk = b.dk.view(), a.dv = b.dv.view();
      a.scope.slices = b.slices.data(), a.scope.slice_count = static_cast<i64>(b.slices.size());
      a.overwrite = fresh_ && list.empty();
      a.overwrite_dkv = fresh_;
      list.push_back(a);
    }
    return list;
  }
  void attend(kernels::AttentionKernel& kernel) {
    const std::vector<kernels::AttendArgs> list = attend_args();
    run_once(kernel, kernels::AttendBlocks{list.data(), static_cast<i64>(list.size())});
  }
  void delta(kernels::AttentionKernel& kernel) {
    const Case& c = trial.c;
    kernel.delta({trial.in.d_o.view(), trial.o.view(), trial.lse.view(), trial.delta.view(), c.query_heads,
                  c.sink ? trial.terms.sinks.data() : nullptr, c.sink ? trial.d_sink.data() : nullptr});
  }
  void all(kernels::AttentionKernel& kernel) {
    attend(kernel);
    delta(kernel);
    const std::vector<kernels::AttendGradArgs> list = grad_args();
    run_once(kernel, kernels::AttendGradBlocks{list.data(), static_cast<i64>(list.size())});
  }
  [[nodiscard]] std::size_t size() const { return blocks_.size(); }
  /// K and V of a block.
  [[nodiscard]] std::array<Tensor4*, 2> arriving(std::size_t block) {
    return {&blocks_[block].k, &blocks_[block].v};
  }
  /// dk and dv of a block.
  [[nodiscard]] std::array<const Tensor4*, 2> gradients(std::size_t block) const {
    return {&blocks_[block].dk, &blocks_[block].dv};
  }
  /// dk and dv of all blocks added up.
  [[nodiscard]] Results results() const {
    Results r = trial.results();
    std::fill(r.dk.begin(), r.dk.end(), 0.0), std::fill(r.dv.begin(), r.dv.end(), 0.0);
    for (const Block& b : blocks_) add(r.dk, b.dk.values()), add(r.dv, b.dv.values());
    return r;
  }

  Trial trial;

 private:
  struct Block {
    Tensor4 k, v, dk, dv;
    std::vector<schedule::Slice> slices;
  };
  void begin(Tensor4& tensor, double carried) const {
    tensor.set(fresh_ ? std::numeric_limits<double>::quiet_NaN() : carried);
  }
  static void add(std::vector<double>& sum, const std::vector<double>& part) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }

  bool fresh_;
  std::deque<Block> blocks_;
};

/// `count` blocks of about as many rows.
inline std::vector<Range> even_blocks(i64 rows, i64 count) {
  std::vector<Range> blocks;
  for (i64 i = 0; i < count; ++i) blocks.push_back({rows * i / count, rows * (i + 1) / count});
  return blocks;
}

}  // namespace usp::test
