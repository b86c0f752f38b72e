// SPDX-License-Identifier: Apache-2.0
#include "runtime_call.hpp"

namespace usp::measure {
namespace {

AttentionPlan plan_of(Backend backend, DType dtype) {
  AttentionPlan plan;
  plan.backend = backend;
  plan.shape = {1,
                RuntimeCall::tokens,
                RuntimeCall::tokens,
                static_cast<int>(RuntimeCall::heads),
                static_cast<int>(RuntimeCall::heads),
                static_cast<int>(RuntimeCall::head_dim),
                static_cast<int>(RuntimeCall::head_dim),
                dtype};
  plan.band = {0, unbounded};
  return plan;
}

}  // namespace

RuntimeCall::RuntimeCall(kernels::AttentionKernel& kernel, Backend backend, DType dtype)
    : tensors_(kernel.memory()), attention_(plan_of(backend, dtype), *alone_, kernel) {
  constexpr i64 parts = 8;
  tensors_.reserve(parts * tokens * heads * head_dim * bytes_of(dtype), parts);
  const auto random = [&] { return tensors_.random(dtype, tokens, heads, head_dim); };
  const auto room = [&] { return tensors_.take(dtype, tokens, heads, head_dim); };
  inputs_.q = random();
  inputs_.k = random();
  inputs_.v = random();
  d_out_ = random();
  out_ = room();
  gradients_ = {room(), room(), room(), nullptr};
  attention_.set_batch(Documents::single(tokens, tokens));
}

}  // namespace usp::measure
