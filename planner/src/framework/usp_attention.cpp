// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include "usp/base/json.hpp"
#include "usp/base/version.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

/// The package takes meshes whose last dimensions are ring and ulysses, whatever lies on neighbouring ranks.
std::string mesh_text(const ExportInput& input) {
  const Mesh& mesh = input.plan.mesh;
  const std::string names = R"(mesh_dim_names=("data", "ring", "ulysses"))";
  const bool both = mesh.ring() > 1 && mesh.ulysses > 1;
  if (!both || input.plan.placement.order == AxisOrder::ulysses_inner)
    return fmt::format(
        "from torch.distributed.device_mesh import init_device_mesh\n\n"
        "mesh = init_device_mesh(\"cuda\", ({}, {}, {}),\n                        {})\n",
        input.data(), mesh.ring(), mesh.ulysses, names);
  return fmt::format(
      "import torch\nfrom torch.distributed.device_mesh import DeviceMesh\n\n"
      "ranks = torch.arange({}).view({}, {}, {}).transpose(1, 2)  # ring inside hosts\n"
      "mesh = DeviceMesh(\"cuda\", ranks, {})\n",
      input.data() * mesh.size(), input.data(), mesh.ulysses, mesh.ring(), names);
}

/// transformers checkpoints all layers or none.
std::string checkpointing_text(const ExportInput& input) {
  const Recompute recompute = input.plan.recompute;
  if (!input.plan.training || input.step().recompute_layers) return "";
  if (recompute != Recompute::full && recompute != Recompute::keep_attention) return "";
  return fmt::format("model.gradient_checkpointing_enable(dict(use_reentrant=False{}))\n",
                     recompute == Recompute::full ? "" : ", context_fn=usp.keep_attention");
}

void write(const ExportInput& input, ExportedPlan& result) {
  result.texts.push_back(
      {"in the training script (transformers)",
       "import usp_attention as usp\n" + mesh_text(input) + checkpointing_text(input) +
           "sp = usp.hf.prepare(model, mesh[\"ring\", \"ulysses\"],\n"
           "                    plan=" +
           Json(input.request.plan_file).dump(-1, ' ', false, Json::error_handler_t::replace) +
           ")\n"
           "for batch in sp.loader(loader):\n"
           "    model(**batch).loss.backward()  # then as ever\n"});
  note_script_settings(input, result);
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "usp-attention";
  t.name = "usp_attention, the Python package of this project";
  t.version = version;
  t.source = "this project";
  t.any_plan = true;
  t.tensor = t.pipeline = false;  // it sets up data, ring and ulysses
  t.zero_stages = {0, 1, 2, 3};
  t.script = "train.py";
  t.write = write;
  return t;
}

}  // namespace

const FrameworkTraits usp_attention_traits = traits();

}  // namespace usp
