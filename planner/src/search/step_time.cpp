// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"
#include "step_terms.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {

using namespace terms;

namespace {

/// Host time of one launch in an eager framework; the device waits where its kernels are shorter.
constexpr double launch_s = 6e-6;
/// Frameworks fuse more or less of these kernels.
constexpr double pointwise_band = 0.3, eager_band = 0.5;

/// Share of a layer's products that are not kept where every second one is: k, the one out of attention, the
/// second into the MLP.
double alternate_share(const Model& model) {
  const LayerKind& kind = model.kinds.front();
  const double q = d(kind.query_heads * kind.head_dim_qk), out = d(kind.query_heads * kind.head_dim_v);
  const double k = d(kind.kv_heads * kind.head_dim_qk), v = d(kind.kv_heads * kind.head_dim_v);
  const double width = d(model.mlp_width(0).value_or(0)), matrices = model.gated_mlp.value_or(true) ? 3 : 2;
  return (k + out + (matrices - 2) * width) / (q + k + v + out + matrices * width);
}

/// Seconds of the slowest stage over the mean, for `layers` equal layers and a head on the last stage.
double imbalance(i64 layers, i64 stages, double layer_s, double head_s) {
  if (stages == 1) return 0;
  const double mean = (d(layers) * layer_s + head_s) / d(stages);
  double least = d(layers) * layer_s + head_s;
  for (i64 last = 0; last <= layers; ++last) {
    const double others = d((layers - last + stages - 2) / (stages - 1)) * layer_s;
    least = std::min(least, std::max(others, d(last) * layer_s + head_s));
  }
  return least - mean;
}

}  // namespace

const StepPricer::StageWork& StepPricer::stage_work(const Choice& choice, const Workload& w) const {
  // Candidates of a mesh differ in what they keep and shard, not in this.
  const i64 mlp_tile = mlp_tile_of(choice);
  const auto [at, fresh] = works_.try_emplace({local_tokens(choice), choice.tensor(), w.expert, mlp_tile});
  StageWork& sum = at->second;
  if (!fresh) return sum;
  const Model& model = *request_.model;
  const LayerShare share{.tokens = d(local_tokens(choice)),
                         .tensor = d(choice.tensor()),
                         .expert = d(w.expert),
                         .sequence_parallel = w.sequence_parallel,
                         .expert_load = w.expert > 1 ? w.expert_load : 1,
                         .expert_tensor = w.expert_tensor,
                         .fused = request_.fused_pointwise,
                         .mlp_tile = d(mlp_tile),
                         .loss_tile = d(request_.memory.loss_tile_tokens),
                         .earlier_tokens = earlier_tokens_};
  for (const AlikeLayers& layers : alike_layers(model, 0, static_cast<int>(model.layers))) {
    const LayerWork one = layer_work(model, layers.layer, w.dtype, share, machine_);
    const double n = d(layers.count);
    LayerWork& all = sum.layers;
    all.projections += n * one.projections;
    all.output += n * one.output;
    all.mlp += n * one.mlp;
    all.backward += n * one.backward;
    all.norms += n * one.norms;
    all.mlp_pointwise += n * one.mlp_pointwise;
    all.residual += n * one.residual;
    all.pointwise_backward += n * one.pointwise_backward;
    all.kernels += n * one.kernels;
    all.kernels_backward += n * one.kernels_backward;
    if (model.is_moe_layer(layers.layer)) sum.moe_layers += n;
  }
  sum.head = head_work(model, w.dtype, share, machine_);
  return sum;
}

void StepPricer::add_time(PlanCandidate& c, const std::vector<LayerAttention>& attention) const {
  const Workload w = workload_of(request_, c.choice);
  StepContext step{w, d(w.microbatches) / w.pipeline, 1, stage_work(c.choice, w), 0, 0};
  if (w.recompute_layers) step.again = std::min(1.0, d(*w.recompute_layers) / d(request_.model->layers));
  add_attention(c, attention, step);
  add_dense(c, step);
  add_tensor(c, step);
  add_experts(c, step);
  add_pipeline(c, step);
  add_states(c, step);
  add_offload(c, step);
  double band = 0;
  for (const TimeTerm& term : c.terms) {
    c.step_s += term.seconds;
    band += term.seconds * term.band;
  }
  c.band = c.step_s > 0 ? band / c.step_s : 0;
  const double tokens = d(w.tokens()) * c.choice.data();
  c.seconds_per_token = c.step_s / tokens;
  c.model_flops = flops_per_token_ * tokens;
  c.flop_s = c.step_s > 0 ? c.model_flops / c.step_s / d(world_) : 0;
  c.mfu = c.flop_s / machine_.head.peak_flops();
}

/// Kernels at a lower clock or of an older generation; what of the exchange shows stays.
double StepPricer::clocked(const PassPrice& pass, double older) const {
  return pass.seconds + pass.compute_s * (older * slower_clock_ - 1);
}

void StepPricer::add_attention(PlanCandidate& c, const std::vector<LayerAttention>& attention,
                               StepContext& step) const {
  const Workload& w = step.workload;
  double forward = 0, backward = 0, forward_band = 0, backward_band = 0;
  double exposed = 0;
  for (const LayerAttention& layer : attention) {
    const double layers = d(request_.model->kinds[layer.kind].calls()) * step.per_stage;
    const double one = clocked(layer.price.forward, request_.older_forward);
    forward += layers * one;
    forward_band += layers * one * layer.price.forward.band;
    exposed += layers * layer.price.forward.exposed_s;
    c.extrapolation |= layer.price.forward.extrapolation;
    if (!w.training) continue;
    const double back = clocked(layer.price.backward, request_.older_backward);
    backward += layers * back;
    backward_band += layers * back * layer.price.backward.band;
    exposed += layers * layer.price.backward.exposed_s;
    c.extrapolation |= layer.price.backward.extrapolation;
  }
  const std::string shown = fmt::format("schedule priced tick by tick; {} of the exchange shows{}",
                                        exposed > 0 ? format_seconds(exposed) : std::string("none"),
                                        w.training ? " in both passes" : "");
  const double again = w.training && attention_again(w.recompute) ? step.again * forward : 0;
  // Which kernels run and how well their rate is known are independent errors.
  const auto with_unknown = [&](double band, double seconds) {
    return seconds > 0 ? std::hypot(request_.attention_band, band / seconds) : 0;
  };
  add(c, "attention forward", forward, with_unknown(forward_band, forward), shown);
  add(c, "attention recomputed", again, with_unknown(forward_band, forward),
      "recompute runs the forward schedule again");
  add(c, "attention backward", backward, with_unknown(backward_band, backward), "the mirrored schedule");
  step.forward_s += forward;
  step.backward_s += backward + again;
  if (!request_.flash_attention) add_scores(c, forward, step);
}

/// Scores of all pairs through memory in 16 bits: the product, softmax and dropout write and read them, 13 B
/// of a pair forward and 19 B backward; and masked pairs are multiplied as well, as many as the visible ones.
void StepPricer::add_scores(PlanCandidate& c, double forward_s, StepContext& step) const {
  const Workload& w = step.workload;
  double pairs = 0;
  for (const LayerKind& kind : request_.model->kinds)
    if (kind.has_softmax())
      pairs += d(w.seq) * d(w.seq) * d(w.rows_per_microbatch()) * d(kind.query_heads) * d(kind.calls());
  const double one = pairs * step.per_stage / c.choice.tensor() / c.choice.mesh.size() /
                     streamed_bytes_s(machine_.memory_bytes_s);
  const double again = w.training && attention_again(w.recompute) ? step.again : 0;
  const double forward = 13 * one + (w.causal ? forward_s : 0);
  const double backward = w.training ? 19 * one + (w.causal ? 2.5 * forward_s : 0) : 0;
  add(c, "attention scores through memory", forward * (1 + again) + backward, 0.3,
      "no flash attention: scores are written and read, masked pairs are multiplied");
  step.forward_s += forward;
  step.backward_s += backward + forward * again;
}

void StepPricer::add_dense(PlanCandidate& c, StepContext& step) const {
  const Workload& w = step.workload;
  const LayerWork& layers = step.work.layers;
  const HeadWork& head = step.work.head;
  // Grouped products of libraries lie between one launch per expert and one for all: a factor of two.
  constexpr double experts_band = 0.7;
  const double routed = request_.model->moe ? experts_band * layers.mlp / layers.products() : 0;
  const double n = step.per_stage, band = machine_.gemm.band() + routed;
  const double forward = layers.products() + head.products;
  const double backward = w.training ? layers.backward + head.products_backward : 0;
  double again = 0, pointwise_again = 0;
  if (w.training && w.recompute == Recompute::mlp) {
    again = layers.mlp, pointwise_again = layers.norms + layers.mlp_pointwise;
  } else if (w.training && (w.recompute == Recompute::keep_attention || layer_again(w.recompute))) {
    again = layers.products(), pointwise_again = layers.pointwise();
  }
  if (w.recompute == Recompute::keep_attention && w.alternate_products)
    again *= alternate_share(*request_.model);
  again *= step.again;
  pointwise_again *= step.again;
  const double flops = flops_per_token_outside_ * d(local_tokens(c.choice)) / c.choice.tensor();
  const double share = flops / ((forward + backward) * machine_.gemm.peak_flops());
  add(c, "projections, MLP, logits", n * (forward + backward), band,
      fmt::format("{} at {}% of the peak rate; {}",
                  counted(local_tokens(c.choice) * w.microbatches, "local token"),
                  format_fixed(100 * share, share < 0.01 ? 2 : 0),
                  machine_.gemm.fixed() ? "as --gemm-efficiency says" : machine_.gemm.card().source));
  add(c, "the same recomputed", n * again, band, fmt::format("recompute {}", word_of(w.recompute)));
  const double pointwise = layers.pointwise() + head.pointwise;
  const double pointwise_backward = w.training ? layers.pointwise_backward + head.pointwise_backward : 0;
  add(c, "norms, activations, residuals, loss", n * (pointwise + pointwise_backward + pointwise_again),
      request_.fused_pointwise ? pointwise_band : eager_band,
      "bytes of fused kernels at 88% of the memory bandwidth; rotary embedding and embedding too");
  step.forward_s += n * (forward + pointwise);
  step.backward_s += n * (backward + pointwise_backward + again + pointwise_again);
  step.layer_s = step.forward_s + step.backward_s;
  const double head_s =
      head.products + head.pointwise + (w.training ? head.products_backward + head.pointwise_backward : 0);
  step.head_s = d(w.microbatches) * head_s;
  const double launches = n * (layers.kernels * (1 + (pointwise_again > 0 ? step.again : 0)) + head.kernels +
                               (w.training ? layers.kernels_backward + head.kernels_backward : 0));
  add(c, "waiting for launches", launches * launch_s - step.forward_s - step.backward_s, 0.5,
      "6 us of host time per kernel are longer than the kernels");
}

void StepPricer::add_tensor(PlanCandidate& c, StepContext& step) const {
  const int tensor = c.choice.tensor();
  if (tensor == 1) return;
  const Workload& w = step.workload;
  const double activation = d(local_tokens(c.choice)) * d(request_.model->hidden * bytes_of(w.dtype));
  const double layers = d(request_.model->layers) * step.per_stage;
  const int blocks = request_.model->blocks_per_layer;
  const double forwards = 1 + (w.training && layer_again(w.recompute) ? step.again : 0);
  const double weights_s = step.per_stage * step.work.layers.backward / 2;  // gradients of weights hide them
  double seconds = 0, band = 0;
  std::string reason;
  if (w.sequence_parallel) {
    const Estimate gather = group_time(Collective::all_gather, tensor, 1, activation);
    const Estimate scatter = group_time(Collective::reduce_scatter, tensor, 1, activation);
    const double pair = layers * blocks * (gather.seconds + scatter.seconds);
    seconds = forwards * pair;
    // Backward gathers the output's gradient in sight; it gathers the input again and scatters its gradient
    // beside the products of the weights' gradients.
    if (w.training) seconds += layers * blocks * gather.seconds + shows(pair, weights_s);
    band = std::max(gather.band, scatter.band);
    reason = fmt::format(
        "{0} all-gathers and {0} reduce-scatters of the layer's activation show in a forward pass, {0} "
        "all-gathers in backward, the rest beside gradients of weights",
        blocks);
  } else {
    const Estimate reduce = group_time(Collective::all_reduce, tensor, 1, activation);
    const double pair = layers * blocks * reduce.seconds;
    seconds = forwards * pair + (w.training ? shows(pair, weights_s) : 0);
    band = reduce.band;
    reason = fmt::format(
        "{} all-reduces of the layer's activation show in a forward pass, those of backward beside "
        "gradients of weights",
        blocks);
  }
  add(c, "tensor-parallel exchange", seconds, band, reason);
  step.forward_s += seconds / (w.training ? 2 : 1);
  step.backward_s += w.training ? seconds / 2 : 0;
}

void StepPricer::add_experts(PlanCandidate& c, StepContext& step) const {
  const Workload& w = step.workload;
  const int tensor = c.choice.tensor();
  if (!request_.model->moe || (w.expert == 1 && tensor == 1)) return;
  const double layers = step.work.moe_layers * step.per_stage,
               copies = d(request_.model->moe->experts_per_token);
  const double tokens = d(local_tokens(c.choice)) * d(request_.model->hidden * bytes_of(w.dtype));
  const double bytes = tokens * copies;
  const double sent = w.expert_load * (w.sequence_parallel || !w.expert_tensor ? tokens / tensor : tokens);
  const Estimate exchange = expert_time(w.expert, w.expert_tensor ? tensor : 1, sent, copies);
  const double passes = 1 + (w.training ? 1 : 0) + (w.training && layer_again(w.recompute) ? step.again : 0);
  const double all = layers * passes * 2 * exchange.seconds;
  // A batch of one microbatch has no other to run beside.
  const bool overlapped = request_.expert_overlap && w.microbatches > 1;
  const double beside = overlapped ? step.forward_s + step.backward_s : 0;
  add(c, "expert exchange", overlapped ? shows(all, beside) : all, exchange.band,
      fmt::format(
          "dispatch and combine of {} per layer and pass over {} expert ranks, once per host and rank, "
          "{}, {}",
          format_bytes(sent), w.expert,
          w.expert_load > 1 ? fmt::format("the busiest at {} x the mean", format_fixed(w.expert_load, 2))
                            : std::string("evenly loaded"),
          overlapped ? "beside another microbatch's compute" : "not hidden"));
  c.extrapolation |= exchange.extrapolation;
  if (tensor == 1 || !w.sequence_parallel || !w.expert_tensor) return;
  const Estimate gather = group_time(Collective::all_gather, tensor, 1, bytes);
  const Estimate scatter = group_time(Collective::reduce_scatter, tensor, 1, bytes);
  add(c, "routed tokens over tensor ranks", layers * passes * (gather.seconds + scatter.seconds),
      std::max(gather.band, scatter.band), "tensor ranks split each expert's width and gather its tokens");
}

void StepPricer::add_pipeline(PlanCandidate& c, StepContext& step) const {
  const Workload& w = step.workload;
  if (w.pipeline == 1) return;
  const double stages = w.pipeline, chunks = w.virtual_stages, microbatches = d(w.microbatches);
  double sum = 0;
  for (const TimeTerm& term : c.terms) sum += term.seconds;
  const double bytes = d(local_tokens(c.choice)) * d(request_.model->hidden * bytes_of(w.dtype)) /
                       (w.sequence_parallel ? c.choice.tensor() : 1);
  // Neighbouring stages lie world / stages devices apart.
  const bool inside = world_ <= domain_devices_;
  if (!inside && nic_bytes_s_ <= 0)
    throw MissingValue({"cluster", 0, "nics"}, "the rate of the NICs between hosts",
                       "give it with --nic 8x400G");
  const double hop = (inside ? request_.calibration->comm.hop(request_.execution.transport, bytes)
                             : links_->between_hosts(NetworkOperation::hop, 2, 1, bytes,
                                                     bytes * devices_per_node_ / nic_bytes_s_))
                         .seconds;
  const double passes = w.training ? 2 : 1;
  const double layer = std::max(0.0, sum * stages - step.head_s) / d(request_.model->layers);
  const double slow = imbalance(request_.model->layers, w.pipeline, layer, step.head_s);
  add(c, "pipeline imbalance", slow, 0.2,
      "the slowest stage over the mean: whole layers, logits on the last");
  add(c, "pipeline bubble", (sum + slow) * (stages - 1) / (microbatches * chunks), 0.1,
      chunks > 1
          ? fmt::format("interleaved 1F1B: (stages - 1) / (microbatches x {} chunks) of the work", chunks)
          : std::string("1F1B: (stages - 1) / microbatches of the work"));
  // Plain 1F1B waits for each neighbour; the interleaved schedule sends beside the next chunk.
  const double steady = passes * microbatches * hop;
  add(c, "pipeline transfers",
      passes * (stages - 1) * hop + (chunks > 1 ? shows(chunks * steady, sum) : steady), 0.3,
      fmt::format("{} per microbatch and direction", format_bytes(bytes)));
}

}  // namespace usp
