// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/schedule/compact.hpp"
#include "usp/schedule/placement.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/recompute.hpp"
#include "usp/schedule/transport.hpp"
#include "usp/schedule/types.hpp"

/// The words of a schedule's enums. Those of methods and backends are in their records (method.hpp,
/// backend.hpp).
namespace usp {

template <>
struct WordTable<LayoutKind> {
  static constexpr Word<LayoutKind> words[] = {{"contiguous", LayoutKind::contiguous},
                                               {"zigzag", LayoutKind::zigzag},
                                               {"striped", LayoutKind::striped},
                                               {"balanced", LayoutKind::balanced}};
};

template <>
struct WordTable<DkvReturn> {
  static constexpr Word<DkvReturn> words[] = {
      {"circulate", DkvReturn::circulate}, {"direct", DkvReturn::direct}, {"cycle", DkvReturn::cycle}};
};

template <>
struct WordTable<AxisOrder> {
  static constexpr Word<AxisOrder> words[] = {{"ulysses_inner", AxisOrder::ulysses_inner},
                                              {"ring_inner", AxisOrder::ring_inner}};
};

template <>
struct WordTable<DType> {
  static constexpr Word<DType> words[] = {
      {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}, {"fp64", DType::fp64}};
};

template <>
struct WordTable<Pass> {
  static constexpr Word<Pass> words[] = {{"forward", Pass::forward}, {"backward", Pass::backward}};
};

template <>
struct WordTable<Tensor> {
  static constexpr Word<Tensor> words[] = {
      {"q", Tensor::q},     {"k", Tensor::k},     {"v", Tensor::v},         {"o", Tensor::o},
      {"lse", Tensor::lse}, {"d_o", Tensor::d_o}, {"delta", Tensor::delta}, {"dq", Tensor::dq},
      {"dk", Tensor::dk},   {"dv", Tensor::dv}};
};

template <>
struct WordTable<BufferSlot> {
  static constexpr Word<BufferSlot> words[] = {{"home", BufferSlot::home},
                                               {"row", BufferSlot::row},
                                               {"ring0", BufferSlot::ring0},
                                               {"ring1", BufferSlot::ring1},
                                               {"outer0", BufferSlot::outer0},
                                               {"outer1", BufferSlot::outer1},
                                               {"all", BufferSlot::all},
                                               {"acc0", BufferSlot::acc0},
                                               {"acc1", BufferSlot::acc1},
                                               {"acc_outer0", BufferSlot::acc_outer0},
                                               {"acc_outer1", BufferSlot::acc_outer1},
                                               {"stage", BufferSlot::stage}};
};

template <>
struct WordTable<schedule::TransferName> {
  static constexpr Word<schedule::TransferName> words[] = {
      {"qkv_all_to_all", schedule::TransferName::qkv_all_to_all},
      {"out_all_to_all", schedule::TransferName::out_all_to_all},
      {"kv_exchange", schedule::TransferName::kv_exchange},
      {"dout_all_to_all", schedule::TransferName::dout_all_to_all},
      {"dqkv_all_to_all", schedule::TransferName::dqkv_all_to_all},
      {"dkv_ring", schedule::TransferName::dkv_ring},
      {"dkv_return", schedule::TransferName::dkv_return}};
};

}  // namespace usp
