// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/method.hpp"
#include "usp/schedule/placement.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/recompute.hpp"
#include "usp/schedule/transport.hpp"

#include <optional>

/// Inputs of planning that a plan file echoes, beside those that its recipe holds.
namespace usp {

/// Type of weights and activations on the device.
enum class Precision { bf16, fp16, fp32 };

enum class Optimizer {
  adamw,  ///< fp32 master weights and two fp32 moments: 12 bytes per parameter
  sgd,    ///< fp32 master weights: 4 bytes per parameter
};

/// What the user has decided; an empty field is the planner's to choose.
struct Constraints {
  std::optional<int> ring, ulysses, data, tensor;
  std::optional<Method> method;
  std::optional<LayoutKind> layout;
  std::optional<DkvReturn> dkv_return;
  std::optional<int> head_chunks;
  std::optional<AxisOrder> order;
  std::optional<Recompute> recompute;
  std::optional<Offload> offload;
  std::optional<int> zero_stage;
  bool gated = false;              ///< AttentionPlan::gated, which the planner never chooses
  std::optional<int> gate_phases;  ///< AttentionPlan::gate_phases; of gated plans
};

/// Memory limits and tiles.
struct MemoryPolicy {
  double reserve_fraction = 0.08;  ///< allocator fragmentation, of all other rows
  /// One set of NCCL's buffers: 340 to 390 MB of a communicator (aiconfigurator), and 32 channels of 10 + 2
  /// MiB of each peer inside a host that messages go to (NVIDIA/nccl issue 1685: an all-to-all of 8 takes 3.3
  /// GB).
  i64 communicator_bytes = i64{384} << 20;
  i64 loss_tile_tokens = 2048;  ///< 0: logits of all local tokens at once
  i64 mlp_tile_tokens = 0;
  std::optional<double> device_bytes;  ///< instead of the card's memory
  std::optional<double> host_bytes;    ///< of a host, instead of the cluster's
};

/// How schedules are executed: what the pricer has to charge besides links and attention kernels.
struct ExecutionOptions {
  Transport transport = Transport::copy_engine;  ///< inside a host or NVLink domain
  bool packed = true;         ///< q, k and v of one tick travel in one exchange; else one exchange each
  bool pack_kernels = false;  ///< an exchange waits for a memory-bound pass at both ends
  bool merge_kernels =
      true;             ///< blocks after the first are merged by a kernel of their own (no carried state)
  bool overlap = true;  ///< transfers may fly beside attention
};

/// Workload of a whole step beyond its attention.
struct StepWorkload {
  i64 batch = 1;  ///< rows per data-parallel replica in one step, all microbatches together
  i64 microbatches = 1;
  int expert = 1;  ///< expert-parallel ranks
  Precision dtype = Precision::bf16;
  bool causal = true;
  Optimizer optimizer = Optimizer::adamw;
  bool fp32_gradients = false;
  int virtual_stages = 1;         ///< model chunks per pipeline stage: interleaved where more than one
  bool expert_tensor = true;      ///< tensor ranks split each expert's width; else they hold whole experts
  bool sequence_parallel = true;  ///< tensor ranks split norms and residuals by tokens
  bool expert_overlap = false;    ///< dispatch and combine beside another microbatch
  Offload offload = {};           ///< kinds of kept tensors in host memory
  std::optional<i64> offload_layers = {};    ///< whose tensors go there; empty: all
  std::optional<i64> recompute_layers = {};  ///< that compute again what `recompute` says; empty: all
  std::optional<i64> model_layers = {};  ///< where not all have softmax attention; empty: those of the plan
  MemoryPolicy memory;
};

struct PlanInputs {
  Constraints fixed;
  ExecutionOptions execution;
  bool all_devices = false;          ///< meshes that leave devices idle were refused
  std::optional<StepWorkload> step;  ///< empty for one attention call
};

template <>
struct WordTable<Precision> {
  static constexpr Word<Precision> words[] = {
      {"bf16", Precision::bf16}, {"fp16", Precision::fp16}, {"fp32", Precision::fp32}};
};
template <>
struct WordTable<Optimizer> {
  static constexpr Word<Optimizer> words[] = {{"adamw", Optimizer::adamw}, {"sgd", Optimizer::sgd}};
};

}  // namespace usp
