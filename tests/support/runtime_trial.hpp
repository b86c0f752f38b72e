// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placed.hpp"
#include "runtime_cases.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/deviation.hpp"
#include "usp/kernels/oracle.hpp"
#include "usp/kernels/regions.hpp"
#include "usp/runtime/attention.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

/// Runs one case on the ranks of a communicator and holds every result against the fp64 oracle of the whole
/// problem at once, as a whole tensor and row by row.
namespace usp::test {

/// Owns the memory of a view, in any order of axes.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType type, i64 batch, i64 rows, i64 heads, i64 width,
             MemoryOrder order = MemoryOrder::batch_row_head)
      : bytes_(static_cast<std::size_t>(batch * rows * heads * width * bytes_of(type))),
        view_(bytes_.data(), type, batch, rows, {0, heads}, width) {
    if (order == MemoryOrder::row_batch_head)
      view_.row_stride = batch * heads * width, view_.batch_stride = heads * width;
    if (order == MemoryOrder::batch_head_row) view_.row_stride = width, view_.head_stride = rows * width;
  }
  [[nodiscard]] const kernels::View& view() const { return view_; }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  /// As fp64, packed [batch][row][head][width].
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> out(static_cast<std::size_t>(view_.elements()));
    kernels::View packed(reinterpret_cast<std::byte*>(out.data()), DType::fp64, view_.batch, view_.rows,
                         view_.heads, view_.width);
    kernels::copy_region(view_, whole(view_), packed, whole(packed), WriteMode::overwrite);
    return out;
  }
  void set(const std::vector<double>& values) {
    kernels::ConstView packed(reinterpret_cast<const std::byte*>(values.data()), DType::fp64, view_.batch,
                              view_.rows, view_.heads, view_.width);
    kernels::copy_region(packed, whole(packed), view_, whole(view_), WriteMode::overwrite);
  }
  template <class V>
  [[nodiscard]] static kernels::ViewRegion whole(const V& v) {
    return {{0, v.rows}, v.heads};
  }

 private:
  std::vector<std::byte> bytes_;
  kernels::View view_;
};

/// Global values, fp64, [batch][token][head][width].
struct Values {
  i64 batch = 0, tokens = 0, heads = 0, width = 0;
  std::vector<double> data;
  Values() = default;
  Values(i64 b, i64 t, i64 h, i64 w)
      : batch(b), tokens(t), heads(h), width(w), data(static_cast<std::size_t>(b * t * h * w)) {}
  explicit Values(const kernels::OracleTensor& t)
      : batch(t.batch), tokens(t.rows), heads(t.heads.size()), width(t.width), data(t.values) {}
  [[nodiscard]] i64 run() const { return heads * width; }
  [[nodiscard]] kernels::View view() {
    return {reinterpret_cast<std::byte*>(data.data()), DType::fp64, batch, tokens, {0, heads}, width};
  }
  /// Rows of some tokens.
  [[nodiscard]] std::vector<double> rows(const std::vector<i64>& ids) const {
    std::vector<double> out;
    for (i64 b = 0; b < batch; ++b)
      for (const i64 t : ids) {
        const auto at = data.begin() + (b * tokens + t) * run();
        out.insert(out.end(), at, at + run());
      }
    return out;
  }
  void add_rows(const std::vector<i64>& ids, const std::vector<double>& values) {
    for (i64 b = 0; b < batch; ++b)
      for (std::size_t i = 0; i < ids.size(); ++i)
        for (i64 x = 0; x < run(); ++x)
          data[static_cast<std::size_t>((b * tokens + ids[i]) * run() + x)] +=
              values[(static_cast<std::size_t>(b) * ids.size() + i) * static_cast<std::size_t>(run()) +
                     static_cast<std::size_t>(x)];
  }
};

[[nodiscard]] inline Values noise(CaseGenerator& draw, i64 b, i64 t, i64 h, i64 w, DType dtype) {
  Values v(b, t, h, w);
  std::normal_distribution<> normal;
  HostTensor rounded(dtype, b, t, h, w);
  for (double& x : v.data) x = normal(draw.engine());
  rounded.set(v.data);
  v.data = rounded.values();
  return v;
}

/// What goes in, the same on every rank.
struct GlobalInputs {
  Values q, k, v;
  std::vector<double> sink, slopes;
  std::vector<std::uint8_t> admitted;
  kernels::BlockMask blocks;

  explicit GlobalInputs(const RuntimeCase& c) {
    CaseGenerator draw(c.seed + 1);
    const AttentionShape& s = c.plan.shape;
    q = noise(draw, s.batch, s.q_tokens, s.query_heads, s.head_dim_qk, s.dtype);
    k = noise(draw, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_qk, s.dtype);
    v = noise(draw, s.batch, s.kv_tokens, s.kv_heads, s.head_dim_v, s.dtype);
    for (int h = 0; h < s.query_heads; ++h) {
      sink.push_back(0.3 * h - 0.5);
      slopes.push_back(std::pow(2.0, -8.0 * (h + 1) / s.query_heads));
    }
    if (c.plan.score.block_tokens == 0) return;
    const i64 n = (s.q_tokens + c.plan.score.block_tokens - 1) / c.plan.score.block_tokens;
    for (i64 i = 0; i < s.query_heads * n * n; ++i) admitted.push_back(draw.chance(0.6) ? 1 : 0);
    blocks = {c.plan.score.block_tokens, c.plan.score.block_tokens, n, n, admitted.data()};
  }
  [[nodiscard]] kernels::ScoreTerms terms(const AttentionPlan& plan) const {
    kernels::ScoreTerms t;
    t.scale = 1 / std::sqrt(static_cast<double>(plan.shape.head_dim_qk));
    t.softcap = plan.score.softcap;
    t.alibi_slopes = plan.score.alibi ? slopes.data() : nullptr;
    t.dropout = plan.score.dropout;
    t.dropout_seed = 1234567;
    t.blocks = plan.score.block_tokens > 0 ? &blocks : nullptr;
    return t;
  }
};

/// The whole problem at once in fp64.
[[nodiscard]] inline kernels::Oracle oracle(const RuntimeCase& c, GlobalInputs& in, Values& d_o) {
  const AttentionShape& s = c.plan.shape;
  std::vector<schedule::Slice> slices;
  for (std::size_t d = 0; d < c.documents.count(); ++d) {
    schedule::Slice x;
    x.q_row = c.documents.cu_q[d], x.q_count = c.documents.cu_q[d + 1] - x.q_row,
    x.q_pos = x.q_row + c.documents.shift[d];
    x.k_row = x.k_pos = x.dk_row = c.documents.cu_k[d], x.k_count = c.documents.cu_k[d + 1] - x.k_row;
    x.diff_min = c.plan.band.diff_min, x.diff_max = c.plan.band.diff_max;
    slices.push_back(x);
  }
  const kernels::ScoreTerms terms = in.terms(c.plan);
  kernels::OracleCall call{in.q.view(), in.k.view(), in.v.view(), d_o.view(), {}};
  call.scope.query_heads = {0, s.query_heads};
  call.scope.group = s.query_heads / s.kv_heads;
  call.scope.slices = slices.data();
  call.scope.slice_count = static_cast<i64>(slices.size());
  call.scope.terms = &terms;
  call.sink = c.plan.sink ? in.sink.data() : nullptr;
  call.grad_rows = s.kv_tokens;
  call.rounds = s.dtype;
  call.rounds_d_o = !c.plan.replicated_q.empty();
  return kernels::attention_oracle(call);
}

/// The least scale an error is measured by. dq and dk are differences (dP - delta) of numbers of order
/// sqrt(Dv); with unit-normal inputs and a query that sees one key they vanish, and a ratio to them would say
/// nothing.
constexpr double min_rms = 0.25;

/// What RMS(a - b) / RMS(b) is made of; sums over parts of a tensor add up. Infinities must agree exactly.
struct Squares {
  double difference = 0, reference = 0, count = 0;
  [[nodiscard]] double relative() const {
    return difference == 0 ? 0 : std::sqrt(difference / std::max(reference, min_rms * min_rms * count));
  }
};
[[nodiscard]] inline Squares squares(const std::vector<double>& a, const std::vector<double>& b) {
  Squares s;
  s.count = static_cast<double>(b.size());
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    s.difference += (a[i] - b[i]) * (a[i] - b[i]);
    s.reference += b[i] * b[i];
  }
  return s;
}
[[nodiscard]] inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  return squares(a, b).relative();
}

struct TrialErrors {
  double o = 0, lse = 0, dq = 0, dk = 0, dv = 0, d_sink = 0;
  std::string rows;   ///< what this rank sees beyond its bound in some row and head, in words
  std::string bytes;  ///< first difference between planned and executed bytes on this rank
  i64 workspace = 0, touched[2] = {0, 0}, planned[2] = {0, 0};
  i64 gated_calls[2] = {0, 0};
  std::vector<std::byte> bits;  ///< everything this rank computed
  [[nodiscard]] double worst() const { return std::max({o, lse, dq, dk, dv, d_sink}); }
};

/// dO of the rank's home tokens. Copies of a replicated token add up to the given one, in shares of powers of
/// two that are all of the same sign: sums over ranks then have the terms of the whole.
[[nodiscard]] inline std::vector<double> own_d_o(const RuntimeCase& c, const Values& global,
                                                 const std::vector<i64>& tokens,
                                                 const comm::Communicator& comm) {
  std::vector<double> rows = global.rows(tokens);
  int parts = 1;
  while (parts < comm.size()) parts *= 2;
  const double share = (comm.rank() < parts - comm.size() ? 2.0 : 1.0) / parts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const i64 token = tokens[i / static_cast<std::size_t>(global.run()) % tokens.size()];
    for (const Range& copies : c.plan.replicated_q)
      if (copies.begin <= token && token < copies.end) rows[i] *= share;
  }
  return rows;
}

/// One rank's tensors of a case, in the kernel's memory; d_out and its global values are the same draw.
struct TrialTensors {
  TrialTensors(const RuntimeCase& c, comm::Communicator& comm, kernels::Memory& memory,
               const std::vector<i64>& q_tokens, const std::vector<i64>& kv_tokens)
      : in(c),
        return_lse(c.plan.return_lse),
        has_sink(c.plan.sink),
        has_alibi(c.plan.score.alibi),
        has_blocks(c.plan.score.block_tokens > 0) {
    const AttentionShape& s = c.plan.shape;
    const auto tensor = [&](const Values& global, const std::vector<i64>& tokens) {
      HostTensor t(s.dtype, s.batch, static_cast<i64>(tokens.size()), global.heads, global.width, c.order);
      t.set(global.rows(tokens));
      return t;
    };
    q = tensor(in.q, q_tokens), k = tensor(in.k, kv_tokens), v = tensor(in.v, kv_tokens);
    const auto rows = static_cast<i64>(q_tokens.size()), keys = static_cast<i64>(kv_tokens.size());
    CaseGenerator draw(c.seed + 100);
    d_out = HostTensor(s.dtype, s.batch, rows, s.query_heads, s.head_dim_v, c.order);
    d_out.set(
        own_d_o(c, noise(draw, s.batch, s.q_tokens, s.query_heads, s.head_dim_v, s.dtype), q_tokens, comm));
    const DType sum = accumulator_of(s.dtype);
    out = HostTensor(s.dtype, s.batch, rows, s.query_heads, s.head_dim_v, c.order);
    lse = HostTensor(sum, s.batch, rows, s.query_heads, 1, c.order);
    dq = HostTensor(s.dtype, s.batch, rows, s.query_heads, s.head_dim_qk, c.order);
    dk = HostTensor(s.dtype, s.batch, keys, s.kv_heads, s.head_dim_qk, c.order);
    dv = HostTensor(s.dtype, s.batch, keys, s.kv_heads, s.head_dim_v, c.order);
    d_sink.assign(static_cast<std::size_t>(s.query_heads), 0);
    q_on = {memory, q}, k_on = {memory, k}, v_on = {memory, v}, d_out_on = {memory, d_out};
    out_on = {memory, out}, lse_on = {memory, lse};
    dq_on = {memory, dq}, dk_on = {memory, dk}, dv_on = {memory, dv};
    sink_on = {memory, in.sink}, slopes_on = {memory, in.slopes}, d_sink_on = {memory, d_sink};
    admitted_on = {memory, in.admitted};
    in.blocks.admitted = admitted_on.data();
  }
  TrialTensors(const TrialTensors&) = delete;
  TrialTensors& operator=(const TrialTensors&) = delete;

  [[nodiscard]] AttentionInputs inputs() const {
    return {q_on.view(),
            k_on.view(),
            v_on.view(),
            has_sink ? sink_on.data() : nullptr,
            has_alibi ? slopes_on.data() : nullptr,
            has_blocks ? &in.blocks : nullptr,
            1234567};
  }
  [[nodiscard]] kernels::View lse_view() const { return return_lse ? lse_on.view() : kernels::View{}; }
  [[nodiscard]] AttentionGradients gradients() const {
    return {dq_on.view(), dk_on.view(), dv_on.view(), has_sink ? d_sink_on.data() : nullptr};
  }
  void fetch() {
    for (Placed<HostTensor>* result : {&out_on, &lse_on, &dq_on, &dk_on, &dv_on}) result->fetch();
    d_sink = d_sink_on.fetch();
  }
  /// Of all results but d_sink, after fetch().
  [[nodiscard]] std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (const HostTensor* t : {&out, &lse, &dq, &dk, &dv})
      all.insert(all.end(), t->bytes().begin(), t->bytes().end());
    return all;
  }

  GlobalInputs in;
  bool return_lse, has_sink, has_alibi, has_blocks;
  HostTensor q, k, v, d_out, out, lse, dq, dk, dv;
  std::vector<double> d_sink;
  Placed<HostTensor> q_on, k_on, v_on, d_out_on, out_on, lse_on, dq_on, dk_on, dv_on;
  PlacedList<double> sink_on, slopes_on, d_sink_on;
  PlacedList<std::uint8_t> admitted_on;
};

/// Collective: one rank's part of a trial; the errors are the same on every rank but for `rows`, `bytes` and
/// `bits`.
[[nodiscard]] inline TrialErrors run_trial(const RuntimeCase& c, comm::DataPlane& data_plane,
                                           kernels::AttentionKernel& kernel,
                                           const ExecutorOptions& options = {}, bool verify = true) {
  const AttentionShape& s = c.plan.shape;
  comm::Communicator& comm = data_plane.control();
  AttentionOperator op(c.plan, data_plane, kernel, options);
  op.set_batch(c.documents);
  TrialTensors t(c, comm, kernel.memory(), op.q_tokens(), op.kv_tokens());
  Values d_o(s.batch, s.q_tokens, s.query_heads, s.head_dim_v);
  d_o.add_rows(op.q_tokens(), t.d_out.values());
  comm.all_reduce_sum(d_o.data.data(), static_cast<i64>(d_o.data.size()));
  GlobalInputs whole(c);
  const kernels::Oracle truth = verify ? oracle(c, whole, d_o) : kernels::Oracle();
  const DType sum = accumulator_of(s.dtype);
  op.forward(t.inputs(), t.out_on.view(), t.lse_view());
  TrialErrors e;
  e.bytes = difference(op.record(Pass::forward).transfers);
  op.backward(t.inputs(), t.d_out_on.view(), t.gradients());
  t.fetch();
  const HostTensor &out = t.out, &lse = t.lse, &dq = t.dq, &dk = t.dk, &dv = t.dv;
  std::vector<double>& d_sink = t.d_sink;
  if (e.bytes.empty()) e.bytes = difference(op.record(Pass::backward).transfers);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    e.touched[pass == Pass::forward ? 0 : 1] = op.record(pass).touched_bytes;
    e.planned[pass == Pass::forward ? 0 : 1] = op.record(pass).workspace_bytes;
    e.gated_calls[pass == Pass::forward ? 0 : 1] = op.record(pass).gated_calls;
  }
  e.bits = t.bits();
  if (!verify) return e;

  const auto rows_within = [&](const char* name, const kernels::Deviation& d, DType type, Pass pass) {
    const std::string found = kernels::fault(name, d, type, pass);
    if (!found.empty()) e.rows += (e.rows.empty() ? "" : "; ") + found;
  };
  // Over all ranks together, as one tensor.
  const auto error = [&](const char* name, const HostTensor& mine, const kernels::OracleTensor& like,
                         DType type) {
    rows_within(name, kernels::deviation(mine.view(), op.q_tokens(), like, type), type, Pass::forward);
    Squares sums = squares(mine.values(), Values(like).rows(op.q_tokens()));
    comm.all_reduce_sum(&sums.difference, 3);
    return sums.relative();
  };
  e.o = error("out", out, truth.out, s.dtype);
  if (c.plan.return_lse) e.lse = error("lse", lse, truth.lse, sum);
  const auto gradient = [&](const char* name, const HostTensor& part, const std::vector<i64>& tokens,
                            const kernels::OracleTensor& like) {
    Values total(like.batch, like.rows, like.heads.size(), like.width);
    total.add_rows(tokens, part.values());
    comm.all_reduce_sum(total.data.data(), static_cast<i64>(total.data.size()));
    rows_within(name, kernels::deviation(total.view(), like, s.dtype), s.dtype, Pass::backward);
    return relative_error(total.data, like.values);
  };
  e.dq = gradient("dq", dq, op.q_tokens(), truth.dq);
  e.dk = gradient("dk", dk, op.kv_tokens(), truth.dk);
  e.dv = gradient("dv", dv, op.kv_tokens(), truth.dv);
  if (c.plan.sink) {
    comm.all_reduce_sum(d_sink.data(), static_cast<i64>(d_sink.size()));
    rows_within("d_sink", kernels::deviation(d_sink, truth.d_sink, truth.d_sink_terms, s.dtype), s.dtype,
                Pass::backward);
    e.d_sink = relative_error(d_sink, truth.d_sink);
  }
  return e;
}

[[nodiscard]] inline TrialErrors run_trial(const RuntimeCase& c, comm::Communicator& comm,
                                           kernels::AttentionKernel& kernel,
                                           const ExecutorOptions& options = {}, bool verify = true) {
  const auto messages = comm::make_message_data_plane(comm);
  return run_trial(c, *messages, kernel, options, verify);
}

}  // namespace usp::test
