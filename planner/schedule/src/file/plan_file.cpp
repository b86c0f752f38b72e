// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/plan_file.hpp"

#include "plan_inputs_json.hpp"
#include "plan_layers.hpp"
#include "recipe_json.hpp"
#include "steps_json.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/json_format.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <limits>

namespace usp {
namespace {

constexpr i64 most = std::numeric_limits<i64>::max() / 4;

const EnumNames<WorkspaceBasis>& basis_words() {
  static const EnumNames<WorkspaceBasis> words = {{"exact", WorkspaceBasis::exact},
                                                  {"bound", WorkspaceBasis::bound}};
  return words;
}
const EnumNames<std::string>& kind_words() {
  static const EnumNames<std::string> words = {
      {"softmax", "softmax"}, {"sliding", "sliding"}, {"chunked", "chunked"}};
  return words;
}

Json pass_json(const PassPrediction& pass) {
  return {{"time_s", pass.seconds},
          {"band", pass.band},
          {"sent_bytes", pass.sent_bytes},
          {"received_bytes", pass.received_bytes},
          {"workspace_bytes", pass.workspace_bytes},
          {"steps", steps_json(pass.steps)}};
}

Json layer_json(const PlanLayer& layer, bool training) {
  const AttentionPlan& plan = layer.plan;
  Json json = {{"kind", layer.kind}, {"layers", layer.layers}};
  if (layer.per_layer > 1) json["per_layer"] = layer.per_layer;  // absent is 1
  json["chunk_tokens"] = layer.chunk_tokens > 0 ? Json(layer.chunk_tokens) : Json(nullptr);
  json.update(recipe_json(plan));
  json["prediction"] = {{"forward", pass_json(layer.forward)},
                        {"backward", training ? pass_json(layer.backward) : Json(nullptr)}};
  return json;
}

/// Everything but the digest, keys in a fixed order.
Json body(const PlanFile& plan) {
  Json json = json_header("usp.plan");
  json["model"] = plan.model;
  json["cluster"] = plan.cluster;
  json["training"] = plan.training;
  json["inputs"] = inputs_json(plan.inputs);
  json["mesh"] = mesh_json(plan.mesh);
  json["placement"] = {{"data", plan.placement.data},
                       {"tensor", plan.placement.tensor},
                       {"pipeline", plan.pipeline},
                       {"order", word_of(plan.placement.order)},
                       {"devices", plan.placement.devices}};
  json["recompute"] = word_of(plan.recompute);
  json["zero_stage"] = plan.zero_stage;
  json["capacity"] = {{"tokens", plan.capacity_tokens}, {"documents", plan.capacity_documents}};
  json["documents"] = plan.documents;
  if (!plan.kv_documents.empty()) json["kv_documents"] = plan.kv_documents;
  json["transports"] = {{"ulysses", word_of(plan.ulysses_transport)}, {"ring", word_of(plan.ring_transport)}};
  json["overlap"] = plan.overlap;
  json["layers"] = Json::array();
  for (const PlanLayer& layer : plan.layers) json["layers"].push_back(layer_json(layer, plan.training));
  json["prediction"] = {{"step_s", plan.step_s},
                        {"band", plan.step_band},
                        {"memory_bytes", plan.memory_bytes > 0 ? Json(plan.memory_bytes) : Json(nullptr)},
                        {"calibration", plan.calibration},
                        {"workspace", enum_name(plan.workspace, basis_words())}};
  // Absent is none, so that files written before it keep their digest.
  if (plan.host_memory_bytes > 0) json["prediction"]["host_memory_bytes"] = plan.host_memory_bytes;
  json["digests"] = {
      {"model", plan.model_digest}, {"workload", plan.workload_digest}, {"cluster", plan.cluster_digest}};
  return json;
}

std::string digest_of(const Json& json) {
  return Digest().bytes(json.dump(-1, ' ', false, Json::error_handler_t::replace)).hex();
}

i64 limit_in(ObjectReader& reader, const char* key, i64 otherwise) {
  return reader.maybe_integer(key, -unbounded, unbounded).value_or(otherwise);
}

std::vector<i64> integers(ObjectReader& reader, const char* key, i64 least) {
  std::vector<i64> list;
  reader.array(key, [&](const Json& value, const std::string& pointer) {
    list.push_back(json_integer(value, reader.file(), pointer, least, most));
  });
  return list;
}

std::vector<int> small_integers(ObjectReader& reader, const char* key) {
  std::vector<int> list;
  reader.array(key, [&](const Json& value, const std::string& pointer) {
    list.push_back(static_cast<int>(json_integer(value, reader.file(), pointer, 0, max_ranks)));
  });
  return list;
}

/// What fits the field; check_attention_plan says what it may be.
int small_integer(ObjectReader& reader, const char* key) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(reader.integer(key, Limits::min(), Limits::max()));
}

std::vector<Range> ranges(ObjectReader& reader, const char* key) {
  std::vector<Range> list;
  reader.array(key, [&](const Json& value, const std::string& pointer) {
    if (!value.is_array() || value.size() != 2)
      throw InvalidInput({reader.file(), 0, pointer}, "a range is [begin, end]");
    list.push_back({json_integer(value[0], reader.file(), pointer + "/0", 0, most),
                    json_integer(value[1], reader.file(), pointer + "/1", 0, most)});
  });
  return list;
}

/// A reason that planning finds.
schedule::UnsupportedReason reason_in(const Json& value, const std::string& file,
                                      const std::string& pointer) {
  const std::string text = json_string(value, file, pointer);
  std::string known;
  for (const Word<schedule::UnsupportedReason>& word : word_list<schedule::UnsupportedReason>()) {
    if (!schedule::found_by_planning(word.value)) continue;
    if (word.text == text) return word.value;
    known += (known.empty() ? "" : ", ") + std::string(word.text);
  }
  throw InvalidInput({file, 0, pointer}, fmt::format("'{}' is not one of {}", text, known));
}

std::string key_of(Backend backend) {
  return std::string(word_of(backend));
}

/// What the plan names for the pass, or one of its fallbacks.
bool computes_steps_of(Backend backend, Backend planned, Pass pass) {
  if (backend == planned.of(pass)) return true;
  if (planned->fallback == nullptr) return false;
  Backend fallback = fallback_of(planned, pass);
  while (fallback != backend && fallback->fallback != nullptr) fallback = fallback_of(fallback);
  return fallback == backend;
}

/// Whose steps may be mixed: the plan's backend, or for one that leaves nothing the first that does.
Backend mixed_backend(Backend asked, Pass pass) {
  if (asked->fallback != nullptr) return asked.of(pass);
  for (const Backend backend : backends())
    if (backend->fallback != nullptr) return backend;
  return asked;
}

schedule::StepBackends steps_in(ObjectReader reader, Backend asked, Pass pass) {
  schedule::StepBackends steps;
  for (const Backend backend : backends())
    if (!backend.has_parts() && (counted_at_zero(backend) || reader.has(key_of(backend).c_str())))
      steps.add(backend, reader.integer(key_of(backend).c_str(), 0, most));
  steps.mixed = reader.integer("mixed", 0, most);
  reader.array("why", [&](const Json& value, const std::string& pointer) {
    steps.why.push_back(reason_in(value, reader.file(), pointer));
  });
  for (const Backend backend : backends())
    if (steps.of(backend) > 0 && !computes_steps_of(backend, asked, pass))
      reader.fail(key_of(backend).c_str(),
                  fmt::format("must be 0: the plan's backend is {}",
                              is_fallback(backend) ? word_of(asked) : std::string_view("another")));
  if (const Backend mixed = mixed_backend(asked, pass); steps.mixed > steps.of(mixed))
    reader.fail("mixed", fmt::format("exceeds {}, of which it is a part", word_of(mixed)));
  reader.finish();
  return steps;
}

PassPrediction pass_in(ObjectReader reader, Backend asked, Pass which) {
  PassPrediction pass;
  pass.seconds = reader.number("time_s", 0, 1e15);
  pass.band = reader.number("band", 0, 1e6);
  pass.sent_bytes = reader.integer("sent_bytes", 0, most);
  pass.received_bytes = reader.integer("received_bytes", 0, most);
  pass.workspace_bytes = reader.integer("workspace_bytes", 0, most);
  if (std::optional<ObjectReader> steps = reader.maybe_object("steps"))
    pass.steps = steps_in(*std::move(steps), asked, which);
  reader.finish();
  return pass;
}

AttentionShape shape_in(ObjectReader reader) {
  AttentionShape shape;
  shape.batch = reader.integer("batch", -most, most);
  shape.q_tokens = reader.integer("q_tokens", -most, most);
  shape.kv_tokens = reader.integer("kv_tokens", -most, most);
  shape.query_heads = small_integer(reader, "query_heads");
  shape.kv_heads = small_integer(reader, "kv_heads");
  shape.head_dim_qk = small_integer(reader, "head_dim_qk");
  shape.head_dim_v = small_integer(reader, "head_dim_v");
  shape.dtype = reader.enumeration<DType>("dtype");
  reader.finish();
  return shape;
}

ScoreRules score_in(ObjectReader reader) {
  constexpr double widest = std::numeric_limits<double>::max();
  ScoreRules score;
  score.scale = reader.maybe_number("scale", -widest, widest).value_or(0);
  score.softcap = reader.number("softcap", -widest, widest);
  score.dropout = reader.number("dropout", -widest, widest);
  score.alibi = reader.boolean("alibi");
  score.block_tokens = reader.integer("block_tokens", -most, most);
  reader.finish();
  return score;
}

/// A file holds the mesh once, above the layers.
void check_layer(const ObjectReader& reader, const AttentionPlan& plan) {
  try {
    check_attention_plan(plan);
  } catch (const InvalidInput& error) {
    const std::string& field = error.where().token;
    const bool of_mesh = field.compare(0, 5, "mesh/") == 0;
    throw InvalidInput({reader.file(), 0, fmt::format("{}/{}", of_mesh ? "" : reader.pointer(), field)},
                       error.problem());
  }
}

PlanLayer layer_in(ObjectReader reader, const Mesh& mesh, bool training) {
  PlanLayer layer;
  AttentionPlan& plan = layer.plan;
  layer.kind = reader.enumeration("kind", kind_words());
  layer.layers = small_integers(reader, "layers");
  if (reader.has("per_layer")) layer.per_layer = static_cast<int>(reader.integer("per_layer", 2, max_degree));
  layer.chunk_tokens = reader.maybe_integer("chunk_tokens", 1, max_tokens).value_or(0);
  plan.mesh = mesh;
  plan.shape = shape_in(reader.object("shape"));
  plan.method = reader.enumeration<Method>("method");
  plan.layout = reader.enumeration<LayoutKind>("layout");
  ObjectReader band = reader.object("band");
  plan.band = {limit_in(band, "diff_min", -unbounded), limit_in(band, "diff_max", unbounded)};
  band.finish();
  plan.dkv_return = reader.enumeration<DkvReturn>("dkv_return");
  plan.head_chunks = small_integer(reader, "head_chunks");
  if (reader.has("split_own_block")) plan.split_own_block = reader.boolean("split_own_block");
  if (reader.has("gated")) plan.gated = reader.boolean("gated");
  if (reader.has("gate_phases")) plan.gate_phases = small_integer(reader, "gate_phases");
  plan.prune = reader.boolean("prune");
  plan.save_exchanged_qkv = reader.boolean("save_exchanged_qkv");
  plan.sink = reader.boolean("sink");
  plan.return_lse = reader.boolean("return_lse");
  plan.backend = reader.enumeration<Backend>("backend");
  plan.score = score_in(reader.object("score"));
  plan.replicated_q = ranges(reader, "replicated_q");
  plan.replicated_k = ranges(reader, "replicated_k");
  check_layer(reader, plan);
  ObjectReader prediction = reader.object("prediction");
  layer.forward = pass_in(prediction.object("forward"), plan.backend, Pass::forward);
  if (training)
    layer.backward = pass_in(prediction.object("backward"), plan.backend, Pass::backward);
  else if (prediction.find("backward") != nullptr)
    prediction.fail("backward", "a plan that is not for training has none");
  prediction.finish();
  reader.finish();
  return layer;
}

/// The batch is the plan's; documents meet keys of another length where their own are given.
void check_tokens(const PlanFile& plan, const PlanLayer& layer, const ObjectReader& reader) {
  const AttentionShape& shape = layer.plan.shape;
  if (shape.q_tokens != plan.capacity_tokens)
    reader.fail("shape/q_tokens", "is not the capacity of the plan");
  i64 keys = 0;
  for (const i64 length : plan.kv_documents) keys += length;
  if (!plan.kv_documents.empty() && keys != shape.kv_tokens)
    reader.fail("shape/kv_tokens", fmt::format("is not the sum of kv_documents, {}", keys));
  const bool packed = !plan.documents.empty() && plan.kv_documents.empty();
  if (shape.kv_tokens != shape.q_tokens && (packed || layer.chunk_tokens > 0))
    reader.fail("shape/kv_tokens",
                "differs from q_tokens: packed cross attention needs kv_documents, and takes no chunks");
}

Mesh mesh_in(ObjectReader reader) {
  Mesh mesh;
  mesh.ring_outer = static_cast<int>(reader.integer("ring_outer", 1, max_degree));
  mesh.ring_inner = static_cast<int>(reader.integer("ring_inner", 1, max_degree));
  mesh.ulysses = static_cast<int>(reader.integer("ulysses", 1, max_degree));
  if (reader.integer("ring", 1, max_degree) != i64{mesh.ring_outer} * mesh.ring_inner)
    reader.fail("ring", "is not ring_outer x ring_inner");
  if (i64{mesh.ring()} * mesh.ulysses > max_ranks) reader.fail("ulysses", "the mesh has too many ranks");
  reader.finish();
  return mesh;
}

void placement_in(ObjectReader reader, PlanFile& plan) {
  plan.placement.data = static_cast<int>(reader.integer("data", 1, max_ranks));
  plan.placement.tensor = static_cast<int>(reader.integer("tensor", 1, max_ranks));
  plan.pipeline = static_cast<int>(reader.integer("pipeline", 1, max_ranks));
  plan.placement.order = reader.enumeration<AxisOrder>("order");
  plan.placement.devices = small_integers(reader, "devices");
  const i64 stage = ranks_of({plan.placement.data, plan.placement.tensor, plan.mesh.size()});
  if (ranks_of({stage, plan.pipeline}) > max_ranks)
    reader.fail("data", fmt::format("the plan has more than {} ranks", max_ranks));
  if (!plan.placement.devices.empty()) {
    if (static_cast<i64>(plan.placement.devices.size()) != stage)
      reader.fail("devices", fmt::format("does not list the {} devices of a stage", stage));
    std::vector<char> seen(plan.placement.devices.size(), 0);
    for (const int device : plan.placement.devices) {
      if (device >= stage || seen[static_cast<std::size_t>(device)] != 0)
        reader.fail("devices", fmt::format("is no permutation: see {}", device));
      seen[static_cast<std::size_t>(device)] = 1;
    }
  }
  reader.finish();
}

void prediction_in(ObjectReader reader, PlanFile& plan) {
  plan.step_s = reader.number("step_s", 0, 1e15);
  plan.step_band = reader.number("band", 0, 1e6);
  plan.memory_bytes = reader.maybe_integer("memory_bytes", 1, most).value_or(0);
  if (reader.has("host_memory_bytes")) plan.host_memory_bytes = reader.integer("host_memory_bytes", 1, most);
  plan.calibration = reader.string("calibration");
  plan.workspace = reader.enumeration("workspace", basis_words());
  reader.finish();
}

void documents_in(ObjectReader& reader, PlanFile& plan) {
  ObjectReader capacity = reader.object("capacity");
  plan.capacity_tokens = capacity.integer("tokens", 1, max_tokens);
  plan.capacity_documents = capacity.integer("documents", 1, max_documents);
  capacity.finish();
  plan.documents = integers(reader, "documents", 0);
  if (reader.has("kv_documents")) plan.kv_documents = integers(reader, "kv_documents", 0);
  if (!plan.kv_documents.empty() && plan.kv_documents.size() != plan.documents.size())
    reader.fail("kv_documents",
                fmt::format("are {}, and documents are {}", plan.kv_documents.size(), plan.documents.size()));
  for (const i64 length : plan.kv_documents)
    if (length > max_tokens) reader.fail("kv_documents", "have at most 2^40 tokens each");
  if (static_cast<i64>(plan.documents.size()) > max_documents)
    reader.fail("documents", fmt::format("are more than {}", max_documents));
  if (plan.documents.empty()) return;
  i64 sum = 0;
  for (const i64 length : plan.documents) sum += std::min(length, max_tokens);
  if (sum != plan.capacity_tokens)
    reader.fail("documents", fmt::format("sum to {}, the capacity is {} tokens", sum, plan.capacity_tokens));
}

}  // namespace

std::string plan_digest(const PlanFile& plan) {
  return digest_of(body(plan));
}

std::string write_plan(const PlanFile& plan) {
  Json json = body(plan);
  json["digest"] = digest_of(json);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

PlanFile read_plan(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  ObjectReader reader(json, file, "");
  check_json_header(reader, "usp.plan", "plan again with 'usp plan ... -o FILE'");
  reader.need_every_key();
  PlanFile plan;
  plan.model = reader.string("model");
  plan.cluster = reader.string("cluster");
  plan.training = reader.boolean("training");
  plan.mesh = mesh_in(reader.object("mesh"));
  placement_in(reader.object("placement"), plan);
  plan.recompute = reader.enumeration<Recompute>("recompute");
  plan.zero_stage = static_cast<int>(reader.integer("zero_stage", 0, 3));
  documents_in(reader, plan);
  ObjectReader transports = reader.object("transports");
  plan.ulysses_transport = transports.enumeration<Transport>("ulysses");
  plan.ring_transport = transports.enumeration<Transport>("ring");
  transports.finish();
  plan.overlap = reader.boolean("overlap");
  plan.inputs = inputs_in(reader.object("inputs"), plan.overlap);
  reader.array("layers", [&](const Json& value, const std::string& pointer) {
    ObjectReader layer(value, file, pointer);
    layer.need_every_key();
    plan.layers.push_back(layer_in(std::move(layer), plan.mesh, plan.training));
    check_tokens(plan, plan.layers.back(), ObjectReader(value, file, pointer));
  });
  if (plan.layers.empty()) reader.fail("layers", "is empty: there is nothing to run; write the plan anew");
  check_layer_lists(plan, file);
  prediction_in(reader.object("prediction"), plan);
  ObjectReader digests = reader.object("digests");
  plan.model_digest = digests.string("model");
  plan.workload_digest = digests.string("workload");
  plan.cluster_digest = digests.string("cluster");
  digests.finish();
  const std::string stated = reader.string("digest");
  reader.finish();
  if (const std::string found = plan_digest(plan); found != stated)
    throw InvalidInput({file, 0, "/digest"},
                       fmt::format("the plan was changed after it was written: its digest is {}, the file "
                                   "states {}; write it anew with usp plan -o",
                                   found, stated));
  return plan;
}

}  // namespace usp
