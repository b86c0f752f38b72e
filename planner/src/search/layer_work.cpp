// SPDX-License-Identifier: Apache-2.0
#include "layer_work.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/detail/flops.hpp"

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

double d(std::int64_t value) {
  return static_cast<double>(value);
}

/// Adds products and their backward.
class Products {
 public:
  Products(const LayerMachine& machine, double element, LayerWork& work)
      : machine_(machine), element_(element), work_(work) {}

  /// The products added from here on take tiles of so many of the tokens, one after another; 0: all at once.
  void in_tiles(double tokens, double tile) {
    tiles_ = tile > 0 ? std::max(1.0, std::ceil(tokens / tile)) : 1;
  }

  /// (tokens x in) times (in x out), `count` of them in one launch. Returns the forward seconds.
  double add(double tokens, double out, double in, double count = 1) {
    const double rows = tokens / tiles_;
    const auto seconds = [&](double m, double n, double k) {
      return tiles_ * machine_.gemm.seconds(m, n, k, element_, count);
    };
    work_.backward += seconds(rows, in, out) + seconds(out, in, rows);
    work_.kernels += tiles_;
    work_.kernels_backward += 2 * tiles_;
    if (machine_.fp8) {  // inputs and gradients are read in 16 bits and written in 8, once each
      const double row = 3 * tokens * count / streamed_bytes_s(machine_.memory_bytes_s);
      work_.residual += row * in;
      work_.pointwise_backward += row * out;
    }
    return seconds(rows, out, in);
  }

 private:
  double tiles_ = 1;
  const LayerMachine& machine_;
  double element_;
  LayerWork& work_;
};

double mlp_matrices(const Model& model) {
  if (!model.gated_mlp)
    throw MissingValue({model.name, 0, "/hidden_act"}, "the number of MLP matrices",
                       "say --model-key gated_mlp=true (gate, up and down) or gated_mlp=false (up and down)");
  return *model.gated_mlp ? 2 : 1;  // into the MLP; one leads out
}

double linear_core_seconds(const Model& model, const LayerKind& kind, const LayerShare& share,
                           const LayerMachine& machine) {
  // Chunked kernels are products of small tiles: half of the sustained rate. An assumption.
  constexpr double small_tiles = 0.5;
  return mixer_flops(model, kind).linear_core * share.tokens / share.tensor /
         (machine.gemm.peak_flops() * machine.gemm.card().sustained * small_tiles);
}

/// Every index head scores all earlier tokens: products as large as those of a small attention, whole on each
/// tensor part.
double indexer_seconds(const SparseIndex& index, const LayerShare& share, const LayerMachine& machine) {
  const double flops = 2 * d(index.heads * index.head_dim) * share.earlier_tokens * share.tokens;
  return flops / (machine.gemm.peak_flops() * machine.gemm.card().sustained);
}

void add_mixer(const Model& model, const LayerKind& kind, const LayerShare& s, const LayerMachine& machine,
               Products& products, LayerWork& work) {
  const double hidden = d(model.hidden), t = s.tokens;
  if (kind.kind == LayerMixer::none) return;
  if (kind.is_linear()) {
    const double out = d(kind.linear->value_heads) * d(kind.linear->value_dim);
    const double all = mixer_flops(model, kind).projections / 2 / hidden;
    work.projections += products.add(t, std::max(1.0, all - out) / s.tensor, hidden);
    const double core = linear_core_seconds(model, kind, s, machine);
    work.projections += core;
    work.backward += 2 * core;
    work.output += products.add(t, hidden, out / s.tensor);
    return;
  }
  const double q = d(kind.query_heads) * d(kind.head_dim_qk), out = d(kind.query_heads) * d(kind.head_dim_v);
  if (model.mla) {
    const double latent = d(model.mla->kv_lora_rank);
    if (model.mla->q_lora_rank) {
      work.projections += products.add(t, d(*model.mla->q_lora_rank), hidden);
      work.projections += products.add(t, q / s.tensor, d(*model.mla->q_lora_rank));
    } else {
      work.projections += products.add(t, q / s.tensor, hidden);
    }
    work.projections += products.add(t, latent + d(model.mla->rope_head_dim), hidden);
    work.projections += products.add(
        t, d(kind.query_heads) * d(model.mla->nope_head_dim + kind.head_dim_v) / s.tensor, latent);
  } else {
    const double k = d(kind.kv_heads) * d(kind.head_dim_qk);
    const double v = kind.shared_kv ? 0 : d(kind.kv_heads) * d(kind.head_dim_v);
    work.projections += products.add(t, (q * (kind.output_gate ? 2 : 1) + k + v) / s.tensor, hidden);
  }
  if (kind.sparse) {
    const SparseIndex& index = *kind.sparse;
    const double from = model.mla && model.mla->q_lora_rank ? d(*model.mla->q_lora_rank) : hidden;
    work.projections += products.add(t, d(index.heads * index.head_dim), from);
    work.projections += products.add(t, d(index.head_dim + index.heads), hidden);
    const double scores = indexer_seconds(index, s, machine);
    work.projections += scores;
    work.backward += 2 * scores;
  }
  work.output += products.add(t, hidden, out / s.tensor);
}

void add_mlp(const Model& model, int layer, const LayerShare& s, Products& products, LayerWork& work) {
  const double hidden = d(model.hidden), into = mlp_matrices(model);
  products.in_tiles(s.tokens, s.mlp_tile);
  const auto dense = [&](double width) {
    work.mlp += products.add(s.tokens, into * width / s.tensor, hidden);
    work.mlp += products.add(s.tokens, hidden, width / s.tensor);
  };
  if (!model.is_moe_layer(layer)) {
    const auto width = model.mlp_width(layer);
    if (!width) throw MissingValue({model.name, 0, "/intermediate_size"}, "intermediate_size", "add the key");
    if (*width > 0) dense(d(*width));
    return;
  }
  const MixtureOfExperts& moe = *model.moe;
  work.mlp += products.add(s.tokens, d(moe.experts), hidden);
  if (moe.shared_experts > 0) dense(d(moe.shared_intermediate));
  // The expert group's tokens meet on the rank that holds their expert.
  const double local = d(moe.experts) / s.expert;
  const double width = d(moe.moe_intermediate) / (s.expert_tensor ? s.tensor : 1);
  const double rows =
      s.expert_load * s.tokens * d(moe.experts_per_token) / local / (s.expert_tensor ? 1 : s.tensor);
  work.mlp += products.add(rows, into * width, hidden, local);
  work.mlp += products.add(rows, hidden, width, local);
}

/// Elements of one token that kernels bound by memory read and write.
struct Streams {
  double norms = 0, mlp = 0, residual = 0, backward = 0;
};

/// Kernel by kernel, an eager norm casts, squares, scales; rotary embedding goes through fp32 pairs; the
/// activation and its product are two kernels. Passes over the tensor, counted in PyTorch's Llama.
constexpr double eager_norm = 2.5, eager_rotation = 5, eager_activation = 1.7;

/// Fused as frameworks fuse them: a norm reads and writes once, rotary embedding runs in place, the
/// activation reads gate and up and writes their product. Backward reads the gradient beside the inputs.
Streams streams_of(const Model& model, int layer, const LayerShare& s) {
  const double whole = s.sequence_parallel ? s.tensor : 1;  // ranks that split a norm or a sum
  const double hidden = d(model.hidden) / whole;
  const double norms = model.details ? model.details->norms_per_layer : 2;
  Streams e;
  const double norm = s.fused ? 1 : eager_norm, rotation = s.fused ? 1 : eager_rotation;
  const double activation = s.fused ? 1 : eager_activation;
  e.norms = norm * norms * 2 * hidden;
  e.residual = model.blocks_per_layer * 3 * hidden;
  e.backward = norm * norms * 3 * hidden + model.blocks_per_layer * 3 * hidden;
  for (const std::size_t k : model.kinds_of(layer)) {
    const LayerKind& kind = model.kinds[k];
    if (!kind.has_softmax()) continue;
    const double rotated = d(kind.query_heads + kind.kv_heads) * d(kind.head_dim_qk) / s.tensor;
    const double passes = model.details && model.details->qk_norm != QkNorm::none ? 2 : 1;
    e.norms += kind.per_layer * rotation * passes * 2 * rotated;
    e.backward += kind.per_layer * rotation * passes * 2 * rotated;
  }
  double width = d(model.mlp_width(layer).value_or(0));
  if (model.is_moe_layer(layer)) {
    const MixtureOfExperts& moe = *model.moe;
    width = d(moe.experts_per_token) * d(moe.moe_intermediate) +
            (moe.shared_experts > 0 ? d(moe.shared_intermediate) : 0);
    // Tokens are copied once per expert on the way in; on the way out the copies are weighted and summed.
    const double sorted =
        (2 * (1 + d(moe.experts_per_token))) * d(model.hidden) / (s.expert_tensor ? 1 : s.tensor);
    e.mlp += sorted;
    e.backward += sorted;
  }
  const double into = mlp_matrices(model);
  e.mlp += activation * (into + 1) * width / s.tensor;
  e.backward += activation * (2 * into + 1) * width / s.tensor;
  return e;
}

}  // namespace

double streamed_bytes_s(double data_sheet_bytes_s) {
  // 4.2 to 4.35 of 4.8 TB/s measured on one H200 for sums, copies and activations of 64 MiB and more.
  return 0.88 * data_sheet_bytes_s;
}

LayerWork layer_work(const Model& model, int layer, Precision dtype, const LayerShare& share,
                     const LayerMachine& machine) {
  LayerWork work;
  const double element = bytes_of(dtype);
  Products products(machine, machine.fp8 ? 1 : element, work);
  for (const std::size_t k : model.kinds_of(layer))
    for (int i = 0; i < model.kinds[k].per_layer; ++i)
      add_mixer(model, model.kinds[k], share, machine, products, work);
  add_mlp(model, layer, share, products, work);
  const Streams e = streams_of(model, layer, share);
  const double second = share.tokens * element / streamed_bytes_s(machine.memory_bytes_s);
  work.norms = e.norms * second;
  work.mlp_pointwise = e.mlp * second;
  work.residual += e.residual * second;
  work.pointwise_backward += e.backward * second;
  // Norms, rotary embedding, activation, sums; their gradients and those of the norms' weights. Eager: the
  // operations of PyTorch's Llama one by one.
  const double forward_kernels = share.fused ? 7 : 26, backward_kernels = share.fused ? 14 : 45;
  const double pairs = model.blocks_per_layer / 2.0;  // of an attention and an MLP
  work.kernels += pairs * forward_kernels;
  work.kernels_backward += pairs * backward_kernels;
  return work;
}

HeadWork head_work(const Model& model, Precision dtype, const LayerShare& share,
                   const LayerMachine& machine) {
  if (!model.vocab) throw MissingValue({model.name, 0, "/vocab_size"}, "vocab_size", "add the key");
  const double element = bytes_of(dtype), hidden = d(model.hidden), t = share.tokens;
  const double vocab = d(*model.vocab) / share.tensor;
  LayerWork products_work;
  LayerMachine sixteen = machine;
  sixteen.gemm = machine.head;
  sixteen.fp8 = false;
  Products products(sixteen, element, products_work);
  HeadWork work;
  products.in_tiles(t, share.loss_tile);
  work.products = products.add(t, vocab, hidden);
  work.products_backward = products_work.backward;
  // Beside each tile's products its loss; embedding and the last norm are few.
  work.kernels = 2 * products_work.kernels;
  work.kernels_backward = products_work.kernels_backward + products_work.kernels;
  const double bytes_s = streamed_bytes_s(machine.memory_bytes_s);
  // Logits are read, written as fp32 and read for the softmax; backward reads them and writes the gradient.
  work.pointwise = t * (vocab * (element + 8) + 2 * hidden * element) / bytes_s;
  work.pointwise_backward = t * (vocab * (4 + element) + 3 * hidden * element) / bytes_s;
  return work;
}

}  // namespace usp
