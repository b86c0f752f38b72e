// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/compact.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/operation.hpp"
#include "usp/schedule/plan.hpp"

#include <iterator>

namespace usp::schedule {
namespace {

bool takes_o(const AttentionPlan& plan) {
  return !plan.backend.of(Pass::backward)->takes.grad_without_o;
}

constexpr Operand attend_operands[] = {{Tensor::q, &ComputeOp::q},
                                       {Tensor::k, &ComputeOp::kv},
                                       {Tensor::v, &ComputeOp::kv},
                                       {Tensor::o, &ComputeOp::o},
                                       {Tensor::lse}};

constexpr Operand delta_operands[] = {
    {Tensor::d_o, &ComputeOp::d_o}, {Tensor::o, &ComputeOp::o}, {Tensor::lse}, {Tensor::delta}};

constexpr Operand attend_grad_operands[] = {{Tensor::q, &ComputeOp::q},
                                            {Tensor::k, &ComputeOp::kv},
                                            {Tensor::v, &ComputeOp::kv},
                                            {Tensor::d_o, &ComputeOp::d_o},
                                            {Tensor::lse},
                                            {Tensor::delta, nullptr, computes_delta},
                                            {Tensor::dq, &ComputeOp::dq},
                                            {Tensor::dk, &ComputeOp::dkv},
                                            {Tensor::dv, &ComputeOp::dkv},
                                            {Tensor::o, &ComputeOp::o, takes_o}};

}  // namespace

namespace operations {

const Operation attend = {.word = "attend",
                          .operands = attend_operands,
                          .operand_count = std::size(attend_operands),
                          .cost = {OperationCost::Kernel::attention_forward},
                          .has_pairs = true,
                          .key_results = Tensor::k};

const Operation delta = {.word = "delta",
                         .operands = delta_operands,
                         .operand_count = std::size(delta_operands),
                         .cost = {OperationCost::Kernel::row_sums}};

const Operation attend_grad = {.word = "attend_grad",
                               .operands = attend_grad_operands,
                               .operand_count = std::size(attend_grad_operands),
                               .cost = {OperationCost::Kernel::attention_backward},
                               .has_pairs = true,
                               .key_results = Tensor::dk};

}  // namespace operations
}  // namespace usp::schedule
