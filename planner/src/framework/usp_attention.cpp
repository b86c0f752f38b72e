// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include "usp/base/version.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

std::string mesh_text(const ExportInput& input) {
  const Mesh& mesh = input.plan.mesh;
  const bool nested = input.plan.placement.order == AxisOrder::ulysses_inner;
  std::string shape = nested ? fmt::format("{}, {}", mesh.ring(), mesh.ulysses)
                             : fmt::format("{}, {}", mesh.ulysses, mesh.ring());
  std::string names = nested ? "\"ring\", \"ulysses\"" : "\"ulysses\", \"ring\"";
  if (input.data() > 1) shape = fmt::format("{}, {}", input.data(), shape), names = "\"data\", " + names;
  if (input.tensor() > 1) shape += fmt::format(", {}", input.tensor()), names += ", \"tensor\"";
  return fmt::format("mesh = init_device_mesh(\n    \"cuda\", ({}),\n    mesh_dim_names=({}))\n", shape,
                     names);
}

void write(const ExportInput& input, ExportedPlan& result) {
  result.texts.push_back({"in the training script (transformers)",
                          "import usp_attention as usp\n" + mesh_text(input) +
                              "sp = usp.hf.prepare(model, mesh[\"ring\", \"ulysses\"],\n"
                              "                    plan=\"plan.json\")\n"
                              "for batch in sp.loader(loader):\n"
                              "    model(**batch).loss.backward()  # then as ever\n"});
  if (input.plan.pipeline > 1) result.notes.emplace_back("each pipeline stage has such a mesh of its own");
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "usp-attention";
  t.name = "usp_attention, the Python package of this project";
  t.version = version;
  t.source = "this project";
  t.any_plan = true;
  t.zero_stages = {0, 1, 2, 3};
  t.script = "train.py";
  t.write = write;
  return t;
}

}  // namespace

const FrameworkTraits usp_attention_traits = traits();

}  // namespace usp
