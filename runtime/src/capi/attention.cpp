// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/kernels/backends.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::capi {

std::unique_ptr<AttentionKernel> make_kernel() {
  return make_cpu_kernel();
}

namespace {

constexpr std::size_t first_inputs =
    offsetof(usp_attention_inputs, dropout_seed) + sizeof(usp_attention_inputs::dropout_seed);
constexpr std::size_t first_gradients =
    offsetof(usp_attention_gradients, d_sink) + sizeof(usp_attention_gradients::d_sink);
constexpr std::size_t first_record =
    offsetof(usp_pass_record, workspace_bytes) + sizeof(usp_pass_record::workspace_bytes);

template <class T>
T zero() {
  T value{};
  value.size = sizeof value;
  return value;
}

Pass pass_of(std::int32_t pass) {
  return enumerator(pass, Pass::backward, "pass");
}

/// Tensors of one attention: rows, heads and widths are the plan's and the batch's.
class Tensors {
 public:
  explicit Tensors(const usp_attention& handle) : handle_(handle) {}

  [[nodiscard]] View q(const usp_tensor& t, const char* name) const {
    return view(t, queries(), shape().query_heads, shape().head_dim_qk, name);
  }
  [[nodiscard]] View k(const usp_tensor& t, const char* name) const {
    return view(t, keys(), shape().kv_heads, shape().head_dim_qk, name);
  }
  [[nodiscard]] View v(const usp_tensor& t, const char* name) const {
    return view(t, keys(), shape().kv_heads, shape().head_dim_v, name);
  }
  [[nodiscard]] View out(const usp_tensor& t, const char* name) const {
    return view(t, queries(), shape().query_heads, shape().head_dim_v, name);
  }
  [[nodiscard]] View lse(const usp_tensor& t) const {
    return view(t, queries(), shape().query_heads, 1, "lse.dtype");
  }

 private:
  [[nodiscard]] const AttentionShape& shape() const { return handle_.layer.plan.shape; }
  [[nodiscard]] i64 queries() const { return static_cast<i64>(handle_.attention.q_tokens().size()); }
  [[nodiscard]] i64 keys() const { return static_cast<i64>(handle_.attention.kv_tokens().size()); }

  [[nodiscard]] View view(const usp_tensor& t, i64 rows, i64 heads, i64 width, const char* name) const {
    View v(static_cast<std::byte*>(t.data), enumerator(t.dtype, DType::fp64, name), shape().batch, rows,
           {0, heads}, width);
    v.batch_stride = t.batch_stride;
    v.row_stride = t.row_stride;
    v.head_stride = t.head_stride;
    return v;
  }

  const usp_attention& handle_;
};

/// The inputs of one call; `mask` must stay where it is while they are used.
AttentionInputs inputs_of(const usp_attention& handle, const usp_attention_inputs* given_inputs,
                          BlockMask& mask) {
  const usp_attention_inputs in = taken(given_inputs, first_inputs, zero<usp_attention_inputs>(), "inputs");
  const Tensors tensors(handle);
  const i64 edge = handle.layer.plan.score.block_tokens;
  mask = {edge, edge, in.block_rows, in.block_columns, in.blocks};
  AttentionInputs out;
  out.q = tensors.q(in.q, "q.dtype");
  out.k = tensors.k(in.k, "k.dtype");
  out.v = tensors.v(in.v, "v.dtype");
  out.sink = in.sink;
  out.alibi_slopes = in.alibi_slopes;
  out.blocks = in.blocks == nullptr ? nullptr : &mask;
  out.dropout_seed = in.dropout_seed;
  return out;
}

std::vector<i64> borders(const int64_t* cu, i64 documents, const char* name) {
  given(cu, name);
  require(documents <= max_documents,
          fmt::format("documents is {}; it must be 1 to {}", documents, max_documents));
  std::vector<i64> list(cu, cu + documents + 1);
  if (list.front() != 0 || !std::is_sorted(list.begin(), list.end()))
    throw InvalidInput({"batch", 0, name}, "must start at 0 and not decrease");
  return list;
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

usp_attention::usp_attention(const usp_plan& plan, usp::Communicator& communicator)
    : layer(plan.layer), kernel(usp::capi::make_kernel()), attention(layer.plan, communicator, *kernel) {}

using namespace usp::capi;

usp_tensor usp_tensor_contiguous(void* data, int32_t dtype, int64_t rows, int64_t heads, int64_t width) {
  return {data, dtype, rows * heads * width, heads * width, width};
}

usp_status usp_attention_inputs_init(usp_attention_inputs* inputs, size_t size) {
  return guarded([&] { start(inputs, size, first_inputs, zero<usp_attention_inputs>(), "inputs"); });
}

usp_status usp_attention_gradients_init(usp_attention_gradients* gradients, size_t size) {
  return guarded(
      [&] { start(gradients, size, first_gradients, zero<usp_attention_gradients>(), "gradients"); });
}

usp_status usp_attention_create(const usp_plan* plan, usp_comm* comm, usp_attention** attention) {
  return guarded([&] {
    given(attention, "attention");
    *attention = new usp_attention(given(plan, "plan"), *given(comm, "comm").communicator);
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
      require(documents >= 1, fmt::format("documents is {}; a batch has at least one", documents));
      const std::vector<usp::i64> cu = borders(cu_seqlens, documents, "cu_seqlens");
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
    require(documents >= 1, fmt::format("documents is {}; a batch has at least one", documents));
    require(handle.layer.chunk_tokens == 0, "a chunked layer cuts documents of self attention only");
    usp::Documents batch;
    batch.cu_q = borders(cu_q, documents, "cu_q");
    batch.cu_k = borders(cu_k, documents, "cu_k");
    for (std::size_t i = 0; i < static_cast<std::size_t>(documents); ++i)
      batch.shift.push_back(shift != nullptr ? shift[i] : batch.cu_k[i + 1] - batch.cu_q[i + 1]);
    set_batch(handle, batch);
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
    const Tensors tensors(handle);
    usp::BlockMask mask;
    const usp::AttentionInputs in = inputs_of(handle, inputs, mask);
    handle.attention.forward(in, tensors.out(given(out, "out"), "out.dtype"),
                             lse == nullptr ? usp::View{} : tensors.lse(*lse));
  });
}

usp_status usp_attention_backward(usp_attention* attention, const usp_attention_inputs* inputs,
                                  const usp_tensor* d_out, const usp_attention_gradients* gradients) {
  return guarded([&] {
    usp_attention& handle = given(attention, "attention");
    const Tensors tensors(handle);
    usp::BlockMask mask;
    const usp::AttentionInputs in = inputs_of(handle, inputs, mask);
    const usp_attention_gradients g =
        taken(gradients, first_gradients, zero<usp_attention_gradients>(), "gradients");
    handle.attention.backward(
        in, tensors.out(given(d_out, "d_out"), "d_out.dtype"),
        {tensors.q(g.dq, "dq.dtype"), tensors.k(g.dk, "dk.dtype"), tensors.v(g.dv, "dv.dtype"), g.d_sink});
  });
}

usp_status usp_attention_record(const usp_attention* attention, int32_t pass, usp_pass_record* record) {
  return guarded([&] {
    const usp::PassRecord& from = record_of(given(attention, "attention"), pass);
    auto own = zero<usp_pass_record>();
    own.planned_sent = from.planned.total(true);
    own.planned_received = from.planned.total(false);
    own.executed_sent = from.executed.total(true);
    own.executed_received = from.executed.total(false);
    own.equal = usp::difference(from.planned, from.executed).empty() ? 1 : 0;
    own.ticks = static_cast<int32_t>(from.ticks.size());
    own.workspace_bytes = from.workspace_bytes;
    put(own, first_record, record, "record");
  });
}

usp_status usp_attention_traffic(const usp_attention* attention, int32_t pass, int32_t tick, int32_t peer,
                                 int64_t planned[2], int64_t executed[2]) {
  return guarded([&] {
    const usp::PassRecord& from = record_of(given(attention, "attention"), pass);
    require(tick >= 0 && tick < from.planned.ticks() && peer >= 0 && peer < from.planned.ranks(),
            "tick or peer is out of range; see usp_pass_record.ticks and usp_comm_size");
    const auto copy = [&](const usp::Traffic& traffic, int64_t to[2]) {
      if (to == nullptr) return;
      to[0] = traffic.bytes(tick, peer, true);
      to[1] = traffic.bytes(tick, peer, false);
    };
    copy(from.planned, planned);
    copy(from.executed, executed);
  });
}
