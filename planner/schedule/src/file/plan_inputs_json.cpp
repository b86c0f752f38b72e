// SPDX-License-Identifier: Apache-2.0
#include "plan_inputs_json.hpp"

#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/words.hpp"

#include <limits>

namespace usp {
namespace {

constexpr i64 most = std::numeric_limits<i64>::max() / 4;

template <class E>
Json word_or_null(const std::optional<E>& value) {
  return value ? Json(word_of(*value)) : Json(nullptr);
}

}  // namespace

Json offload_json(Offload offload) {
  Json list = Json::array();
  for (const Word<Kept>& kind : word_list<Kept>())
    if (offload.has(kind.value)) list.push_back(kind.text);
  return list;
}

std::optional<Offload> offload_in(ObjectReader& reader) {
  if (!reader.has("offload")) return std::nullopt;
  Offload offload;
  reader.array("offload", [&](const Json& value, const std::string& at) {
    const std::string word = json_string(value, reader.file(), at);
    try {
      offload = offload.with(parse_word<Kept>(word, "offload"));
    } catch (const UsageError& error) {
      throw InvalidInput({reader.file(), 0, at}, error.what());
    }
  });
  return offload;
}

Json fixed_json(const Constraints& fixed) {
  Json json = {{"ring", json_or_null(fixed.ring)},
               {"ulysses", json_or_null(fixed.ulysses)},
               {"data", json_or_null(fixed.data)},
               {"tensor", json_or_null(fixed.tensor)},
               {"method", word_or_null(fixed.method)},
               {"layout", word_or_null(fixed.layout)},
               {"dkv_return", word_or_null(fixed.dkv_return)},
               {"head_chunks", json_or_null(fixed.head_chunks)},
               {"order", word_or_null(fixed.order)},
               {"recompute", word_or_null(fixed.recompute)},
               {"zero_stage", json_or_null(fixed.zero_stage)}};
  // Absent is its default, so that files written before it keep their digest.
  if (fixed.offload) json["offload"] = offload_json(*fixed.offload);
  if (fixed.gated) json["gated"] = true;
  if (fixed.gate_phases) json["gate_phases"] = *fixed.gate_phases;
  return json;
}

Json memory_json(const MemoryPolicy& memory) {
  return {
      {"reserve_ratio", memory.reserve_fraction},          {"communicator_bytes", memory.communicator_bytes},
      {"loss_tile_tokens", memory.loss_tile_tokens},       {"mlp_tile_tokens", memory.mlp_tile_tokens},
      {"device_bytes", json_or_null(memory.device_bytes)}, {"host_bytes", json_or_null(memory.host_bytes)}};
}

namespace {

/// Keys whose absence is their default are left out, so that files written before them keep their digest.
Json step_json(const StepWorkload& step) {
  Json json = {{"batch", step.batch},
               {"microbatches", step.microbatches},
               {"expert", step.expert},
               {"dtype", word_of(step.dtype)},
               {"causal", step.causal},
               {"optimizer", word_of(step.optimizer)},
               {"fp32_gradients", step.fp32_gradients}};
  if (step.virtual_stages > 1) json["virtual_stages"] = step.virtual_stages;
  if (!step.expert_tensor) json["expert_tensor"] = false;
  if (!step.sequence_parallel) json["sequence_parallel"] = false;
  if (step.recompute_layers) json["recompute_layers"] = *step.recompute_layers;
  if (step.expert_overlap) json["expert_overlap"] = true;
  if (step.offload.any()) json["offload"] = offload_json(step.offload);
  if (step.offload_layers) json["offload_layers"] = *step.offload_layers;
  if (step.model_layers) json["model_layers"] = *step.model_layers;
  json["memory"] = memory_json(step.memory);
  return json;
}

template <class E>
std::optional<E> maybe_word(ObjectReader& reader, const char* key) {
  if (reader.find(key) == nullptr) return std::nullopt;
  return reader.enumeration<E>(key);
}

std::optional<int> maybe_int(ObjectReader& reader, const char* key, i64 lower, i64 upper) {
  const auto value = reader.maybe_integer(key, lower, upper);
  return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
}

}  // namespace

Constraints fixed_in(ObjectReader reader) {
  Constraints fixed;
  fixed.ring = maybe_int(reader, "ring", 1, max_degree);
  fixed.ulysses = maybe_int(reader, "ulysses", 1, max_degree);
  fixed.data = maybe_int(reader, "data", 1, max_ranks);
  fixed.tensor = maybe_int(reader, "tensor", 1, max_ranks);
  fixed.method = maybe_word<Method>(reader, "method");
  fixed.layout = maybe_word<LayoutKind>(reader, "layout");
  fixed.dkv_return = maybe_word<DkvReturn>(reader, "dkv_return");
  fixed.head_chunks = maybe_int(reader, "head_chunks", 1, std::numeric_limits<int>::max());
  fixed.order = maybe_word<AxisOrder>(reader, "order");
  fixed.recompute = maybe_word<Recompute>(reader, "recompute");
  fixed.zero_stage = maybe_int(reader, "zero_stage", 0, 3);
  fixed.offload = offload_in(reader);
  if (reader.has("gated")) fixed.gated = reader.maybe_boolean("gated").value_or(false);
  if (reader.has("gate_phases"))
    fixed.gate_phases = maybe_int(reader, "gate_phases", 1, schedule::max_gate_phases);
  if (fixed.gate_phases && !fixed.gated)
    reader.fail("gate_phases", std::string(schedule::phases_without_gates));
  reader.finish();
  return fixed;
}

namespace {

ExecutionOptions execution_in(ObjectReader reader, bool overlap) {
  ExecutionOptions execution;
  execution.transport = reader.enumeration<Transport>("transport");
  execution.packed = reader.boolean("packed");
  execution.pack_kernels = reader.boolean("pack_kernels");
  execution.merge_kernels = reader.boolean("merge_kernels");
  execution.overlap = overlap;
  reader.finish();
  return execution;
}

MemoryPolicy memory_in(ObjectReader reader) {
  MemoryPolicy memory;
  memory.reserve_fraction = reader.number("reserve_ratio", 0, 1);
  memory.communicator_bytes = reader.integer("communicator_bytes", 0, most);
  memory.loss_tile_tokens = reader.integer("loss_tile_tokens", 0, max_tokens);
  memory.mlp_tile_tokens = reader.integer("mlp_tile_tokens", 0, max_tokens);
  memory.device_bytes = reader.maybe_number("device_bytes", 0, static_cast<double>(most));
  memory.host_bytes = reader.maybe_number("host_bytes", 0, static_cast<double>(most));
  reader.finish();
  return memory;
}

StepWorkload step_in(ObjectReader reader) {
  StepWorkload step;
  step.batch = reader.integer("batch", 1, most);
  step.microbatches = reader.integer("microbatches", 1, step.batch);
  step.expert = static_cast<int>(reader.integer("expert", 1, max_ranks));
  step.dtype = reader.enumeration<Precision>("dtype");
  step.causal = reader.boolean("causal");
  step.optimizer = reader.enumeration<Optimizer>("optimizer");
  step.fp32_gradients = reader.boolean("fp32_gradients");
  if (reader.has("virtual_stages"))
    step.virtual_stages = static_cast<int>(reader.integer("virtual_stages", 2, max_ranks));
  if (reader.has("expert_tensor")) step.expert_tensor = reader.boolean("expert_tensor");
  if (reader.has("sequence_parallel")) step.sequence_parallel = reader.boolean("sequence_parallel");
  if (reader.has("recompute_layers"))
    step.recompute_layers = reader.integer("recompute_layers", 1, max_ranks);
  if (reader.has("expert_overlap")) step.expert_overlap = reader.boolean("expert_overlap");
  step.offload = offload_in(reader).value_or(Offload{});
  if (reader.has("offload_layers")) step.offload_layers = reader.integer("offload_layers", 1, max_ranks);
  if (reader.has("model_layers")) step.model_layers = reader.integer("model_layers", 1, max_ranks);
  step.memory = memory_in(reader.object("memory"));
  reader.finish();
  return step;
}

}  // namespace

Json inputs_json(const PlanInputs& inputs) {
  return {{"fixed", fixed_json(inputs.fixed)},
          {"execution",
           {{"transport", word_of(inputs.execution.transport)},
            {"packed", inputs.execution.packed},
            {"pack_kernels", inputs.execution.pack_kernels},
            {"merge_kernels", inputs.execution.merge_kernels}}},
          {"all_devices", inputs.all_devices},
          {"step", inputs.step ? step_json(*inputs.step) : Json(nullptr)}};
}

PlanInputs inputs_in(ObjectReader reader, bool overlap) {
  PlanInputs inputs;
  inputs.fixed = fixed_in(reader.object("fixed"));
  inputs.execution = execution_in(reader.object("execution"), overlap);
  inputs.all_devices = reader.boolean("all_devices");
  if (std::optional<ObjectReader> step = reader.maybe_object("step")) inputs.step = step_in(*std::move(step));
  reader.finish();
  return inputs;
}

}  // namespace usp
