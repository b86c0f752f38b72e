// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "handles.hpp"

#include "usp/runtime/attention_call.hpp"
#include "usp/runtime/execution.hpp"

#include <cstdint>
#include <vector>

/// Tensors, lists and records of usp.h as the C++ types.
namespace usp::capi {

constexpr std::size_t first_inputs =
    offsetof(usp_attention_inputs, dropout_seed) + sizeof(usp_attention_inputs::dropout_seed);
constexpr std::size_t first_gradients =
    offsetof(usp_attention_gradients, d_sink) + sizeof(usp_attention_gradients::d_sink);

/// A struct of this library's size, all else zero.
template <class T>
T zero() {
  T value{};
  value.size = sizeof value;
  return value;
}

[[nodiscard]] usp_attention_inputs default_inputs();
[[nodiscard]] usp_attention_gradients default_gradients();

/// The tensors of one call: heads and widths are the plan's, rows the batch's.
class Tensors {
 public:
  Tensors(const AttentionPlan& plan, i64 q_rows, i64 kv_rows)
      : plan_(plan), q_rows_(q_rows), kv_rows_(kv_rows) {}

  [[nodiscard]] kernels::View q(const usp_tensor& t, const char* name) const;
  [[nodiscard]] kernels::View k(const usp_tensor& t, const char* name) const;
  [[nodiscard]] kernels::View v(const usp_tensor& t, const char* name) const;
  [[nodiscard]] kernels::View out(const usp_tensor& t, const char* name) const;
  [[nodiscard]] kernels::View lse(const usp_tensor* t) const;
  /// `mask` must stay where it is while they are used.
  [[nodiscard]] AttentionInputs inputs(const usp_attention_inputs* inputs, kernels::BlockMask& mask) const;
  [[nodiscard]] AttentionGradients gradients(const usp_attention_gradients* gradients) const;

 private:
  [[nodiscard]] kernels::View view(const usp_tensor& t, i64 rows, i64 heads, i64 width,
                                   const char* name) const;

  const AttentionPlan& plan_;
  i64 q_rows_, kv_rows_;
};

/// Borders of documents; throws where they do not start at 0 or decrease.
[[nodiscard]] std::vector<i64> borders(const int64_t* cu, i64 documents, const char* name);
/// Of self attention.
[[nodiscard]] std::vector<i64> self_borders(const int64_t* cu_seqlens, i64 documents);

/// Queries and keys of different lengths; shift null: the last query of a document is at its last key.
[[nodiscard]] Documents cross_documents(const int64_t* cu_q, const int64_t* cu_k, const int64_t* shift,
                                        i64 documents);

[[nodiscard]] Pass pass_of(std::int32_t pass);
void put_record(const PassRecord& from, usp_pass_record* record);

}  // namespace usp::capi
