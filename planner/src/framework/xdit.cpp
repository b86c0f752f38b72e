// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

void write_xdit(const ExportInput& input, ExportedPlan& result) {
  set(result, "--ulysses_degree", input.chosen.ulysses);
  set(result, "--ring_degree", input.chosen.ring);
  if (input.tensor() > 1) set(result, "--tensor_parallel_degree", input.tensor());
  if (input.data() > 1) set(result, "--data_parallel_degree", input.data());
  result.notes.emplace_back(
      "xDiT serves diffusion transformers (forward, no mask); yunchang is its library for training and "
      "causal "
      "masks (--to yunchang)");
}

std::string start_xdit(const ExportInput& input, const std::string& node_rank) {
  if (input.hosts == 1) return "xdit --model $MODEL";  // reckons the processes from the degrees
  return torchrun_start(input, node_rank) + " xfuser/runner.py --model $MODEL";
}

void write_yunchang(const ExportInput& input, ExportedPlan& result) {
  const bool causal = input.plan.layers.front().plan.band.diff_min == 0;
  const bool low = input.chosen.order == AxisOrder::ulysses_inner;
  const std::string ring = !causal ? "basic" : "zigzag";
  result.texts.push_back(
      {"in the training script",
       fmt::format("from yunchang import EXTRACT_FUNC_DICT, LongContextAttention\n"
                   "from yunchang import set_seq_parallel_pg\n\n"
                   "set_seq_parallel_pg(sp_ulysses_degree={}, sp_ring_degree={}, rank=rank,\n"
                   "                    world_size={}, use_ulysses_low={})\n"
                   "attention = LongContextAttention(ring_impl_type=\"{}\")\n"
                   "local = EXTRACT_FUNC_DICT[\"{}\"](x, rank, {}, rd={}, ud={})  # [B, S, ...]\n",
                   input.chosen.ulysses, input.chosen.ring, input.world(), low ? "True" : "False", ring, ring,
                   input.sequence_ranks(), input.chosen.ring, input.chosen.ulysses)});
  note_script_settings(input, result);
  result.notes.emplace_back("token map: the plan's own, 2 x ring chunks that Ulysses cuts once more");
}

ExchangeMode any_mesh() {
  ExchangeMode mode;
  mode.word = "usp";
  mode.ring = mode.ulysses = true;
  mode.dkv_return = DkvReturn::cycle;  // as many hops of gradients as ranks
  mode.documents = false;
  return mode;
}

FrameworkTraits xdit() {
  FrameworkTraits t;
  t.word = "xdit";
  t.name = "xDiT";
  t.version = "xfuser 0.7.0";
  t.source = "PyPI xfuser 0.7.0 config/args.py, config/config.py, cli.py; order of ranks: tp-sp-pp-cfg-dp";
  t.modes = {any_mesh()};
  t.modes.front().order = AxisOrder::ulysses_inner;
  t.training = t.causal = t.pipeline = t.expert = false;
  t.write = write_xdit;
  t.start = start_xdit;
  return t;
}

FrameworkTraits yunchang() {
  FrameworkTraits t;
  t.word = "yunchang";
  t.name = "yunchang (long-context-attention)";
  t.version = "yunchang 0.6.4";
  t.source = "PyPI yunchang 0.6.4 globals.py, comm/extract_local.py, hybrid/attn_layer.py";
  t.modes = {any_mesh()};
  t.sequence_multiple = 2;
  t.tensor = t.pipeline = t.expert = false;  // its groups are runs of world ranks
  t.zero_stages = {0, 1, 2, 3};
  t.script = "train.py";
  t.write = write_yunchang;
  return t;
}

}  // namespace

const FrameworkTraits xdit_traits = xdit();
const FrameworkTraits yunchang_traits = yunchang();

}  // namespace usp
