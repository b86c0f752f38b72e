// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"
#include "tensors.hpp"

#include "usp/runtime/make_kernel.hpp"

#include <fmt/format.h>

namespace usp::capi {

std::unique_ptr<kernels::AttentionKernel> make_kernel() {
  return usp::make_kernel(Backend{}, kernels::host_memory(), false);
}

namespace {

constexpr std::size_t first_options =
    offsetof(usp_attention_options, reserved) + sizeof(usp_attention_options::reserved);

/// The tensors of the attention's plan and batch.
Tensors tensors_of(const usp_attention& handle) {
  return {handle.layer.plan, static_cast<i64>(handle.attention.q_tokens().size()),
          static_cast<i64>(handle.attention.kv_tokens().size())};
}

void set_batch(usp_attention& handle, const Documents& documents) {
  handle.has_batch = false;
  handle.attention.set_batch(documents);
  handle.has_batch = true;
}

const PassRecord& record_of(const usp_attention& handle, std::int32_t pass) {
  const Pass which = pass_of(pass);
  require(handle.has_batch, "the attention has no batch; call usp_attention_set_batch first");
  return handle.attention.record(which);
}

usp_status tokens(const usp_attention* attention, bool queries, const int64_t** ids, int64_t* count) {
  return guarded([&] {
    const usp_attention& handle = given(attention, "attention");
    require(handle.has_batch, "the attention has no batch; call usp_attention_set_batch first");
    const std::vector<i64>& list = queries ? handle.attention.q_tokens() : handle.attention.kv_tokens();
    if (ids != nullptr) *ids = list.data();
    if (count != nullptr) *count = static_cast<int64_t>(list.size());
  });
}

}  // namespace
}  // namespace usp::capi

usp_attention::usp_attention(const usp_plan& plan, usp::comm::Communicator& communicator,
                             const usp::ExecutorOptions& options)
    : layer(plan.layer),
      kernel(usp::capi::make_kernel()),
      attention(layer.plan, communicator, *kernel, options) {}

using namespace usp::capi;

usp_tensor usp_tensor_contiguous(void* data, int32_t dtype, int64_t rows, int64_t heads, int64_t width) {
  return {data, dtype, rows * heads * width, heads * width, width};
}

usp_status usp_attention_inputs_init(usp_attention_inputs* inputs, size_t size) {
  return guarded([&] { start(inputs, size, first_inputs, default_inputs(), "inputs"); });
}

usp_status usp_attention_gradients_init(usp_attention_gradients* gradients, size_t size) {
  return guarded([&] { start(gradients, size, first_gradients, default_gradients(), "gradients"); });
}

usp_status usp_attention_create(const usp_plan* plan, usp_comm* comm, usp_attention** attention) {
  return usp_attention_create_with(plan, comm, nullptr, attention);
}

usp_status usp_attention_options_init(usp_attention_options* options, size_t size) {
  return guarded([&] { start(options, size, first_options, zero<usp_attention_options>(), "options"); });
}

usp_status usp_attention_create_with(const usp_plan* plan, usp_comm* comm,
                                     const usp_attention_options* options, usp_attention** attention) {
  return guarded([&] {
    given(attention, "attention");
    const auto defaults = zero<usp_attention_options>();
    const usp_attention_options own =
        options == nullptr ? defaults : taken(options, first_options, defaults, "options");
    require(own.reserved == 0, "options.reserved must be 0");
    *attention = new usp_attention(given(plan, "plan"), *given(comm, "comm").communicator,
                                   {.forward_only = own.forward_only != 0});
  });
}

void usp_attention_destroy(usp_attention* attention) {
  delete attention;
}

usp_status usp_attention_set_batch(usp_attention* attention, const int64_t* cu_seqlens, int64_t documents) {
  return guarded([&] {
    usp_attention& handle = given(attention, "attention");
    std::vector<usp::i64> lengths;
    if (cu_seqlens != nullptr || documents != 0) {
      const std::vector<usp::i64> cu = self_borders(cu_seqlens, documents);
      if (handle.layer.chunk_tokens == 0) return set_batch(handle, usp::Documents::packed(cu));
      for (std::size_t i = 1; i < cu.size(); ++i) lengths.push_back(cu[i] - cu[i - 1]);
    }
    set_batch(handle, usp::layer_documents(handle.layer, lengths));
  });
}

usp_status usp_attention_set_cross_batch(usp_attention* attention, const int64_t* cu_q, const int64_t* cu_k,
                                         const int64_t* shift, int64_t documents) {
  return guarded([&] {
    usp_attention& handle = given(attention, "attention");
    require(handle.layer.chunk_tokens == 0, "a chunked layer cuts documents of self attention only");
    set_batch(handle, cross_documents(cu_q, cu_k, shift, documents));
  });
}

usp_status usp_attention_q_tokens(const usp_attention* attention, const int64_t** ids, int64_t* count) {
  return tokens(attention, true, ids, count);
}

usp_status usp_attention_kv_tokens(const usp_attention* attention, const int64_t** ids, int64_t* count) {
  return tokens(attention, false, ids, count);
}

usp_status usp_attention_forward(usp_attention* attention, const usp_attention_inputs* inputs,
                                 const usp_tensor* out, const usp_tensor* lse) {
  return guarded([&] {
    usp_attention& handle = given(attention, "attention");
    const Tensors tensors = tensors_of(handle);
    usp::kernels::BlockMask mask;
    const usp::AttentionInputs in = tensors.inputs(inputs, mask);
    handle.attention.forward(in, tensors.out(given(out, "out"), "out.dtype"), tensors.lse(lse));
  });
}

usp_status usp_attention_backward(usp_attention* attention, const usp_attention_inputs* inputs,
                                  const usp_tensor* d_out, const usp_attention_gradients* gradients) {
  return guarded([&] {
    usp_attention& handle = given(attention, "attention");
    const Tensors tensors = tensors_of(handle);
    usp::kernels::BlockMask mask;
    const usp::AttentionInputs in = tensors.inputs(inputs, mask);
    handle.attention.backward(in, tensors.out(given(d_out, "d_out"), "d_out.dtype"),
                              tensors.gradients(gradients));
  });
}

usp_status usp_attention_record(const usp_attention* attention, int32_t pass, usp_pass_record* record) {
  return guarded([&] { put_record(record_of(given(attention, "attention"), pass), record); });
}

usp_status usp_attention_traffic(const usp_attention* attention, int32_t pass, int32_t tick, int32_t peer,
                                 int64_t planned[2], int64_t executed[2]) {
  return guarded([&] {
    const usp_attention& handle = given(attention, "attention");
    const usp::PassRecord& from = record_of(handle, pass);
    require(tick >= 0 && static_cast<std::size_t>(tick) < from.ticks.size() && peer >= 0 &&
                peer < handle.layer.plan.mesh.size(),
            "tick or peer is out of range; see usp_pass_record.ticks and usp_comm_size");
    std::int64_t sums[2][2] = {};
    for (const usp::TransferRecord& t : from.transfers) {
      if (t.tick != tick || t.peer != peer) continue;
      sums[0][t.send ? 0 : 1] += t.planned_bytes;
      sums[1][t.send ? 0 : 1] += t.executed_bytes;
    }
    if (planned != nullptr) std::copy_n(sums[0], 2, planned);
    if (executed != nullptr) std::copy_n(sums[1], 2, executed);
  });
}
