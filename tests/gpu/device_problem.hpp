// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../contract/attention_case.hpp"
#include "random_cases.hpp"

#include "usp/kernels/cuda_backends.hpp"

/// A drawn case on the device.
namespace usp::test {

/// A tensor in device memory with the layout of one on the host. Memory holds NaNs until it is written.
class DeviceTensor {
 public:
  DeviceTensor(const Tensor4& like, kernels::Memory& memory)
      : host_(like), memory_(memory), arena_(memory.make_arena()) {
    arena_->reserve(std::max<i64>(bytes(), 1));
    memory.set_bytes(arena_->data(), 0xff, bytes());
  }
  [[nodiscard]] kernels::View view() const {
    kernels::View v = host_.view();
    v.data = arena_->data();
    return v;
  }
  void send() { memory_.from_host(arena_->data(), host_.memory().data(), bytes()); }
  [[nodiscard]] std::vector<double> values() {
    memory_.to_host(host_.view().data, arena_->data(), bytes());
    memory_.synchronize();
    return host_.values();
  }

 private:
  [[nodiscard]] i64 bytes() const { return static_cast<i64>(host_.memory().size()); }
  Tensor4 host_;
  kernels::Memory& memory_;
  std::unique_ptr<kernels::Arena> arena_;
};

class DeviceProblem {
 public:
  DeviceProblem(const Draw& draw, const Inputs& in, kernels::Memory& memory)
      : draw_(draw),
        c_(draw.problem),
        memory_(memory),
        terms_(draw.problem),
        q_(in.q, memory),
        k_(in.k, memory),
        v_(in.v, memory),
        d_o_(in.d_o, memory) {
    for (DeviceTensor* t : {&q_, &k_, &v_, &d_o_}) t->send();
    if (c_.alibi) terms_.terms.alibi_slopes = table(slopes_, terms_.slopes);
    if (c_.sink) sinks_on_device_ = table(sinks_, terms_.sinks);
    if (terms_.terms.blocks != nullptr) terms_.blocks.admitted = table(admitted_, terms_.admitted);
  }

  Results run(kernels::AttentionKernel& kernel) {
    const DType result = draw_.overwrite && draw_.rounded ? draw_.io : DType::fp32;
    Tensor4 lse_host = rows_of(DType::fp32, 1);
    Tensor4 o_host = rows_of(result, c_.dv);
    DeviceTensor o(o_host, memory_), lse(lse_host, memory_), delta(lse_host, memory_);
    if (!draw_.overwrite) begin_state(o, lse);
    const std::size_t calls = draw_.overwrite ? 1 : draw_.calls, n = c_.slices.size();
    for (std::size_t i = 0; i < calls; ++i)
      run_once(kernel, kernels::AttendArgs{q_.view(), k_.view(), v_.view(), o.view(), lse.view(),
                                           scope(n * i / calls, n * (i + 1) / calls), draw_.overwrite,
                                           draw_.overwrite && c_.sink ? sinks_on_device_ : nullptr});
    const std::vector<double> none(static_cast<std::size_t>(c_.query_heads.end), 0);
    double* d_sink = const_cast<double*>(table(d_sinks_, none));
    kernel.delta({d_o_.view(), o.view(), lse.view(), delta.view(), c_.query_heads,
                  c_.sink ? sinks_on_device_ : nullptr, c_.sink ? d_sink : nullptr});

    DeviceTensor dq(rows_of(result, c_.dqk), memory_), dk(keys_of(result, c_.dqk), memory_),
        dv(keys_of(result, c_.dv), memory_);
    if (!draw_.overwrite)
      for (DeviceTensor* t : {&dq, &dk, &dv}) memory_.fill(t->view(), 0);
    for (std::size_t i = 0; i < calls; ++i)
      run_once(kernel, kernels::AttendGradArgs{q_.view(), k_.view(), v_.view(), d_o_.view(), lse.view(),
                                               delta.view(), dq.view(), dk.view(), dv.view(),
                                               scope(n * i / calls, n * (i + 1) / calls), draw_.overwrite});
    std::vector<double> sink_gradient = none;
    memory_.to_host(sink_gradient.data(), reinterpret_cast<const std::byte*>(d_sink),
                    static_cast<i64>(none.size()) * 8);
    memory_.synchronize();
    return {o.values(), lse.values(), delta.values(), dq.values(), dk.values(), dv.values(), sink_gradient};
  }
  bool repeats(kernels::AttentionKernel& kernel, const Results& first) {
    const Results again = run(kernel);
    return again.dq == first.dq && again.dk == first.dk && again.dv == first.dv;
  }

 private:
  [[nodiscard]] kernels::AttendScope scope(std::size_t first, std::size_t end) const {
    return {c_.query_heads, c_.group, c_.slices.data() + first, static_cast<i64>(end - first),
            &terms_.terms,  {}};
  }
  [[nodiscard]] Tensor4 rows_of(DType type, i64 width) const {
    return {type, c_.batch, c_.q_rows, c_.query_heads, width, draw_.order};
  }
  [[nodiscard]] Tensor4 keys_of(DType type, i64 width) const {
    return {type, c_.batch, c_.grad_rows(), c_.kv_heads(), width, draw_.order};
  }
  void begin_state(const DeviceTensor& o, const DeviceTensor& lse) {
    memory_.fill(o.view(), 0);
    if (c_.sink)
      memory_.fill_heads(lse.view(), sinks_on_device_);
    else
      memory_.fill(lse.view(), -std::numeric_limits<double>::infinity());
  }
  template <class T>
  const T* table(std::unique_ptr<kernels::Arena>& arena, const std::vector<T>& values) {
    const i64 bytes = static_cast<i64>(values.size() * sizeof(T));
    if (arena == nullptr) arena = memory_.make_arena();
    arena->reserve(std::max<i64>(bytes, 1));
    memory_.from_host(arena->data(), values.data(), bytes);
    return reinterpret_cast<const T*>(arena->data());
  }

  const Draw& draw_;
  const Case& c_;
  kernels::Memory& memory_;
  Terms terms_;
  DeviceTensor q_, k_, v_, d_o_;
  std::unique_ptr<kernels::Arena> slopes_, sinks_, admitted_, d_sinks_;
  const double* sinks_on_device_ = nullptr;
};

}  // namespace usp::test
