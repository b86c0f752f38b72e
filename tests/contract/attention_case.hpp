// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/deviation.hpp"
#include "usp/kernels/oracle.hpp"
#include "usp/kernels/regions.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

/// One attention problem for any backend and type, and what a backend makes of it.
namespace usp::test {

enum class Order { batch_first, sequence_first, head_first, padded };

/// Owns the memory of a view.
class Tensor4 {
 public:
  Tensor4() = default;
  Tensor4(DType type, i64 batch, i64 rows, Range heads, i64 width, Order order = Order::batch_first) {
    view_ = kernels::View(nullptr, type, batch, rows, heads, width);
    const i64 h = heads.size();
    i64 elements = batch * rows * h * width;
    if (order == Order::sequence_first) {
      view_.row_stride = batch * h * width;
      view_.batch_stride = h * width;
    } else if (order == Order::head_first) {
      view_.head_stride = rows * width;
      view_.row_stride = width;
    } else if (order == Order::padded) {
      view_.head_stride = width + 3;
      view_.row_stride = h * (width + 3) + 5;
      view_.batch_stride = rows * view_.row_stride + 7;
      elements = batch * view_.batch_stride;
    }
    memory_.resize(static_cast<std::size_t>(elements * bytes_of(type)));
  }
  [[nodiscard]] kernels::View view() const {
    kernels::View v = view_;
    v.data = const_cast<std::byte*>(memory_.data());
    return v;
  }
  void set(double value) { kernels::fill(view(), value); }
  /// All elements in the order row, batch, head, element.
  void set(const std::vector<double>& values) {
    const kernels::View v = view();
    kernels::unpack_region(reinterpret_cast<const std::byte*>(values.data()), DType::fp64, v,
                           {{0, v.rows}, v.heads}, WriteMode::overwrite);
  }
  [[nodiscard]] std::vector<double> values() const {
    const kernels::View v = view();
    std::vector<double> out(static_cast<std::size_t>(v.elements()));
    kernels::pack_region(v, {{0, v.rows}, v.heads}, DType::fp64, reinterpret_cast<std::byte*>(out.data()));
    return out;
  }
  [[nodiscard]] const std::vector<std::byte>& memory() const { return memory_; }

 private:
  std::vector<std::byte> memory_;
  kernels::View view_;
};

struct Case {
  std::string name;
  i64 batch = 1;
  i64 q_rows = 0, k_rows = 0, dk_rows = 0;  ///< dk_rows 0: as k_rows
  Range query_heads{0, 1};
  int group = 1;
  i64 dqk = 8, dv = 8;
  std::vector<schedule::Slice> slices;
  double softcap = 0, dropout = 0;
  bool alibi = false, sink = false;
  kernels::BlockMask blocks;  ///< admitted is filled from `seed` where block_q != 0
  double magnitude = 1;
  std::uint64_t seed = 1;

  [[nodiscard]] Range kv_heads() const {
    return {query_heads.begin / group, (query_heads.end - 1) / group + 1};
  }
  [[nodiscard]] i64 grad_rows() const { return dk_rows == 0 ? k_rows : dk_rows; }
};

/// The terms of a case, with the tables that they point to.
struct Terms {
  explicit Terms(const Case& c) {
    std::mt19937_64 random(c.seed + 1000);
    for (i64 h = 0; h < c.query_heads.end; ++h) {
      slopes.push_back(std::exp2(-static_cast<double>(h + 1)));
      sinks.push_back(0.5 - 0.3 * static_cast<double>(h));
    }
    terms.scale = 1 / std::sqrt(static_cast<double>(c.dqk));
    terms.softcap = c.softcap;
    terms.dropout = c.dropout;
    terms.dropout_seed = 0x123456789abcdefU + c.seed;
    if (c.alibi) terms.alibi_slopes = slopes.data();
    if (c.blocks.block_q == 0) return;
    blocks = c.blocks;
    for (i64 i = 0; i < c.query_heads.end * blocks.rows * blocks.columns; ++i)
      admitted.push_back(random() % 3 == 0 ? 0 : 1);
    blocks.admitted = admitted.data();
    terms.blocks = &blocks;
  }
  Terms(const Terms&) = delete;
  Terms& operator=(const Terms&) = delete;

  std::vector<double> slopes, sinks;
  std::vector<std::uint8_t> admitted;
  kernels::BlockMask blocks;
  kernels::ScoreTerms terms;
};

/// Inputs of a type, alike for all backends: fp64 copies hold the same (rounded) numbers.
struct Inputs {
  Inputs(const Case& c, DType type, DType d_o_type, Order order = Order::batch_first)
      : q(type, c.batch, c.q_rows, c.query_heads, c.dqk, order),
        k(type, c.batch, c.k_rows, c.kv_heads(), c.dqk, order),
        v(type, c.batch, c.k_rows, c.kv_heads(), c.dv, order),
        d_o(d_o_type, c.batch, c.q_rows, c.query_heads, c.dv, order) {
    std::mt19937_64 random(c.seed);
    std::normal_distribution<double> normal;
    for (Tensor4* t : {&q, &k, &v, &d_o}) {
      std::vector<double> values(static_cast<std::size_t>(t->view().elements()));
      for (double& x : values) x = normal(random) * (t == &q || t == &k ? c.magnitude : 1);
      t->set(values);
    }
  }
  Inputs(const Case& c, const Inputs& other) : Inputs(c, DType::fp64, DType::fp64) {
    q.set(other.q.values());
    k.set(other.k.values());
    v.set(other.v.values());
    d_o.set(other.d_o.values());
  }
  Tensor4 q, k, v, d_o;
};

struct Results {
  std::vector<double> o, lse, delta, dq, dk, dv, d_sink;
};

/// Runs forward, delta and backward. `calls` > 1 hands the slices over in as many calls.
class Trial {
 public:
  Trial(const Case& problem, const Inputs& inputs, Order order = Order::batch_first)
      : c(problem), terms(problem), in(inputs) {
    const DType state = accumulator_of(in.q.view().type);
    o = Tensor4(state, c.batch, c.q_rows, c.query_heads, c.dv, order);
    lse = Tensor4(state, c.batch, c.q_rows, c.query_heads, 1, order);
    delta = lse;
    dq = Tensor4(state, c.batch, c.q_rows, c.query_heads, c.dqk, order);
    dk = Tensor4(state, c.batch, c.grad_rows(), c.kv_heads(), c.dqk, order);
    dv = Tensor4(state, c.batch, c.grad_rows(), c.kv_heads(), c.dv, order);
    for (Tensor4* t : {&o, &dq, &dk, &dv}) t->set(0.0);
    lse.set(-std::numeric_limits<double>::infinity());
    if (c.sink) set_sinks();
    d_sink.assign(static_cast<std::size_t>(c.query_heads.end), 0);
  }

  void attend(kernels::AttentionKernel& kernel, std::size_t first, std::size_t end) {
    run_once(kernel, attend_args(first, end));
  }
  void grad(kernels::AttentionKernel& kernel, std::size_t first, std::size_t end) {
    run_once(kernel, grad_args(first, end));
  }
  [[nodiscard]] kernels::AttendArgs attend_args(std::size_t first, std::size_t end) const {
    return {in.q.view(), in.k.view(), in.v.view(), o.view(), lse.view(), scope(first, end)};
  }
  [[nodiscard]] kernels::AttendGradArgs grad_args(std::size_t first, std::size_t end) const {
    return {in.q.view(), in.k.view(), in.v.view(), in.d_o.view(),     lse.view(), delta.view(),
            dq.view(),   dk.view(),   dv.view(),   scope(first, end), false,      o.view()};
  }
  void all(kernels::AttentionKernel& kernel, std::size_t calls = 1) {
    const std::size_t n = c.slices.size();
    for (std::size_t i = 0; i < calls; ++i) attend(kernel, n * i / calls, n * (i + 1) / calls);
    kernel.delta({in.d_o.view(), o.view(), lse.view(), delta.view(), c.query_heads,
                  c.sink ? terms.sinks.data() : nullptr, c.sink ? d_sink.data() : nullptr});
    for (std::size_t i = 0; i < calls; ++i) grad(kernel, n * i / calls, n * (i + 1) / calls);
  }
  [[nodiscard]] Results results() const {
    return {o.values(), lse.values(), delta.values(), dq.values(), dk.values(), dv.values(), d_sink};
  }
  [[nodiscard]] kernels::AttendScope scope(std::size_t first, std::size_t end) const {
    return {c.query_heads, c.group, c.slices.data() + first, static_cast<i64>(end - first), &terms.terms,
            progress,      use};
  }

  const Case& c;
  Terms terms;
  const Inputs& in;
  Tensor4 o, lse, delta, dq, dk, dv;
  std::vector<double> d_sink;
  kernels::Progress progress;
  std::optional<usp::Backend> use;  ///< of the scope

 private:
  void set_sinks() {
    std::vector<double> values;
    for (i64 i = 0; i < c.q_rows * c.batch; ++i)
      for (i64 h = c.query_heads.begin; h < c.query_heads.end; ++h)
        values.push_back(terms.sinks[static_cast<std::size_t>(h)]);
    lse.set(values);
  }
};

/// The truth of a case and the terms that roundings to `rounds` act on.
[[nodiscard]] inline kernels::Oracle oracle_of(const Case& c, const Inputs& in, DType rounds) {
  const Terms terms(c);
  kernels::OracleCall call{in.q.view(), in.k.view(), in.v.view(), in.d_o.view(), {}};
  call.scope.query_heads = c.query_heads;
  call.scope.group = c.group;
  call.scope.slices = c.slices.data();
  call.scope.slice_count = static_cast<i64>(c.slices.size());
  call.scope.terms = &terms.terms;
  call.sink = c.sink ? terms.sinks.data() : nullptr;
  call.grad_rows = c.grad_rows();
  call.rounds = rounds;
  call.rounds_d_o = bytes_of(in.d_o.view().type) > bytes_of(rounds);
  return kernels::attention_oracle(call);
}

/// What of the results is beyond its bound in some row and head, in words; empty: nothing.
[[nodiscard]] inline std::string row_faults(const Results& got, const kernels::Oracle& truth, DType rounds) {
  std::string text;
  const auto check = [&](const char* name, const std::vector<double>& values,
                         const kernels::OracleTensor& like, DType type, Pass pass) {
    kernels::ConstView view(reinterpret_cast<const std::byte*>(values.data()), DType::fp64, like.batch,
                            like.rows, like.heads, like.width);
    view.batch_stride = like.heads.size() * like.width;
    view.row_stride = like.batch * view.batch_stride;
    const std::string found = kernels::fault(name, kernels::deviation(view, like, type), type, pass);
    if (!found.empty()) text += (text.empty() ? "" : "; ") + found;
  };
  check("o", got.o, truth.out, rounds, Pass::forward);
  check("lse", got.lse, truth.lse, accumulator_of(rounds), Pass::forward);
  check("delta", got.delta, truth.delta, rounds, Pass::backward);
  check("dq", got.dq, truth.dq, rounds, Pass::backward);
  check("dk", got.dk, truth.dk, rounds, Pass::backward);
  check("dv", got.dv, truth.dv, rounds, Pass::backward);
  if (truth.d_sink.empty()) return text;
  const std::string found =
      kernels::fault("d_sink", kernels::deviation(got.d_sink, truth.d_sink, truth.d_sink_terms, rounds),
                     rounds, Pass::backward);
  return text + (text.empty() || found.empty() ? "" : "; ") + found;
}

/// RMS(a - b) / RMS(b) over finite b; infinite when an infinity or NaN of one is not in the other.
[[nodiscard]] inline double error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    const double d = a[i] - b[i];
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference += d * d;
    size += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / (size == 0 ? std::numeric_limits<double>::min() : size));
}

}  // namespace usp::test
