// SPDX-License-Identifier: Apache-2.0
#include "plan_inputs_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/request_fault.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/planner/workload.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>

namespace usp {
namespace {

constexpr i64 max_bytes = std::numeric_limits<i64>::max() / 4;
constexpr i64 most_candidates = 100000;
constexpr i64 most_threads = 4096;
constexpr int max_hosts = std::numeric_limits<int>::max();

/// Size and digest that a request states of its cluster.
struct StatedCluster {
  std::optional<i64> devices;
  std::optional<std::string> digest;
};

/// Where a part of the request lies, as a file name in messages of the reader of that part.
std::string part_name(const ObjectReader& reader, const char* key) {
  return fmt::format("{}#{}/{}", reader.file(), reader.pointer(), key);
}

/// Text that names something; "" and stdin, which is the command line's, do not.
std::string name_in(ObjectReader& reader, const char* key) {
  std::string name = reader.string(key);
  if (name.empty()) reader.fail(key, "is empty; give a name, or leave the key out");
  if (name == "-")
    reader.fail(key, "names stdin, which a request does not read; give a file or the object itself");
  return name;
}

std::string maybe_name(ObjectReader& reader, const char* key) {
  return reader.find(key) == nullptr ? "" : name_in(reader, key);
}

/// A name, or the document itself.
std::string name_or_text(ObjectReader& reader, const char* key, std::optional<std::string>& text) {
  const Json& value = reader.need(key);
  if (!value.is_object()) return name_in(reader, key);
  text = value.dump();
  return part_name(reader, key);
}

std::optional<double> rate_in(ObjectReader& reader, const char* key) {
  return maybe_read_si(reader, key, FieldUnit::gb_s, min_rate_gb_s, max_rate_gb_s);
}

void read_source(ObjectReader& reader, topology::ClusterRequest& cluster) {
  const bool source = reader.has("source"), name = reader.has("name");
  if (source == name)
    reader.fail(source ? "name" : "source",
                source ? "excludes source; a cluster has one of them" : "is missing; give source or name");
  if (name) cluster.source = name_in(reader, "name");
  if (source) cluster.source = name_or_text(reader, "source", cluster.text);
  if (reader.find("source_format") != nullptr)
    cluster.format = reader.enumeration<topology::SourceFormat>("source_format");
}

void read_options(ObjectReader& reader, topology::ClusterRequest& cluster) {
  cluster.device = maybe_name(reader, "device");
  if (const auto nodes = reader.maybe_integer("nodes", 1, max_hosts))
    cluster.nodes = static_cast<int>(*nodes);
  cluster.nic = maybe_name(reader, "nic");
  cluster.fabric = maybe_name(reader, "fabric");
  cluster.oversubscription = reader.maybe_number("oversubscription_ratio", 1, 1e6);
  cluster.pcie_gb_s = rate_in(reader, "pcie_bytes_per_s");
  cluster.nvlink_gb_s = rate_in(reader, "nvlink_bytes_per_s");
  cluster.numa_gb_s = rate_in(reader, "numa_bytes_per_s");
  cluster.slurm = maybe_name(reader, "slurm");
  cluster.p2p = maybe_name(reader, "p2p");
  reader.array(
      "curves",
      [&](const Json& value, const std::string& at) {
        cluster.curves.push_back(json_string(value, reader.file(), at));
        if (cluster.curves.back().empty() || cluster.curves.back() == "-")
          throw InvalidInput({reader.file(), 0, at}, "is no file; give the path of an output of nccl-tests");
      },
      true);
  reader.array(
      "visible_devices",
      [&](const Json& value, const std::string& at) {
        cluster.devices.push_back(static_cast<int>(json_integer(value, reader.file(), at, 0, 65535)));
      },
      true);
}

StatedCluster read_cluster(ObjectReader& top, topology::ClusterRequest& cluster) {
  if (!top.need("cluster").is_object()) {
    cluster.source = name_in(top, "cluster");
    return {};
  }
  ObjectReader reader = top.object("cluster");
  read_source(reader, cluster);
  read_options(reader, cluster);
  StatedCluster stated{reader.maybe_integer("devices", 1, max_ranks), reader.maybe_string("digest")};
  reader.finish();
  return stated;
}

/// An echoed cluster is named, not described: the name may stand for another machine here.
void check_cluster(const StatedCluster& stated, const ClusterSummary& found, const std::string& file) {
  const auto refuse = [&](const char* key, const std::string& here) {
    throw InvalidInput({file, 0, std::string("/cluster/") + key},
                       fmt::format("the cluster {} has {} here; it was made with other options or files: "
                                   "state them beside source, or leave this key out",
                                   found.name, here));
  };
  if (stated.devices && *stated.devices != static_cast<i64>(found.devices))
    refuse("devices", fmt::format("{} devices", found.devices));
  if (stated.digest && *stated.digest != found.digest) refuse("digest", "digest " + found.digest);
}

/// Usage errors are of the cluster's options, which have the names of flags.
template <class Load>
void load_named(const std::string& file, const Load& load) {
  try {
    load();
  } catch (const UsageError& error) {
    throw InvalidInput({file, 0, "/cluster"}, error.what());
  }
}

std::vector<i64> documents_in(ObjectReader& reader, const char* key = "documents") {
  std::vector<i64> documents;
  reader.array(
      key,
      [&](const Json& value, const std::string& at) {
        documents.push_back(json_integer(value, reader.file(), at, 0, max_tokens));
      },
      true);
  return documents;
}

/// Fields that are absent keep their defaults; recompute and zero_stage are those of `fixed`.
Workload workload_in(ObjectReader reader, const Constraints& fixed) {
  Workload w;
  const auto integer = [&](const char* key, i64 initial, i64 most) {
    return reader.maybe_integer(key, 1, most).value_or(initial);
  };
  w.seq = reader.integer("seq", 1, max_tokens);
  w.batch = integer("batch", w.batch, max_batch);
  if (reader.find("dtype") != nullptr) w.dtype = reader.enumeration<Precision>("dtype");
  w.causal = reader.maybe_boolean("causal").value_or(w.causal);
  w.documents = documents_in(reader);
  w.training = reader.maybe_boolean("training").value_or(w.training);
  if (reader.find("optimizer") != nullptr) w.optimizer = reader.enumeration<Optimizer>("optimizer");
  w.fp32_gradients = reader.maybe_boolean("fp32_gradients").value_or(w.fp32_gradients);
  w.microbatches = integer("microbatches", w.microbatches, max_batch);
  w.pipeline = static_cast<int>(integer("pipeline", w.pipeline, max_ranks));
  w.virtual_stages = static_cast<int>(integer("virtual_stages", w.virtual_stages, max_ranks));
  w.expert = static_cast<int>(integer("expert", w.expert, max_ranks));
  w.recompute_layers = reader.maybe_integer("recompute_layers", 1, max_ranks);
  w.offload_layers = reader.maybe_integer("offload_layers", 1, max_ranks);
  w.expert_load = reader.maybe_number("expert_load", 1, 1e6).value_or(w.expert_load);
  w.expert_tensor = reader.maybe_boolean("expert_tensor").value_or(w.expert_tensor);
  w.sequence_parallel = reader.maybe_boolean("sequence_parallel").value_or(w.sequence_parallel);
  reader.finish();
  w.recompute = fixed.recompute.value_or(w.recompute);
  w.offload = fixed.offload.value_or(w.offload);
  w.zero_stage = fixed.zero_stage.value_or(w.zero_stage);
  try {
    check_workload(w);
  } catch (const Error& error) {
    throw InvalidInput({reader.file(), 0, reader.pointer()}, error.what());
  }
  return w;
}

MemoryPolicy memory_policy_in(ObjectReader reader) {
  MemoryPolicy memory;
  memory.reserve_fraction = reader.maybe_number("reserve_ratio", 0, 1).value_or(memory.reserve_fraction);
  if (memory.reserve_fraction == 1) reader.fail("reserve_ratio", "leaves no memory; give less than 1");
  memory.communicator_bytes =
      reader.maybe_integer("communicator_bytes", 0, max_bytes).value_or(memory.communicator_bytes);
  memory.loss_tile_tokens =
      reader.maybe_integer("loss_tile_tokens", 0, max_tokens).value_or(memory.loss_tile_tokens);
  memory.mlp_tile_tokens =
      reader.maybe_integer("mlp_tile_tokens", 0, max_tokens).value_or(memory.mlp_tile_tokens);
  memory.device_bytes = reader.maybe_number("device_bytes", 1, static_cast<double>(max_bytes));
  memory.host_bytes = reader.maybe_number("host_bytes", 1, static_cast<double>(max_bytes));
  reader.finish();
  return memory;
}

void check_transport(const ExecutionOptions& execution, const topology::Cluster& cluster,
                     const std::string& file) {
  if (execution.transport == Transport::nccl && topology::on_host_cores(cluster))
    throw InvalidInput(
        {file, 0, "/execution/transport"},
        "nccl carries data between GPUs, and the devices are ranks on the cores of their hosts; "
        "leave it out");
}

ExecutionOptions execution_options_in(ObjectReader reader) {
  ExecutionOptions options;
  if (reader.find("transport") != nullptr)
    options = execution_options(reader.enumeration<Transport>("transport"));
  const auto boolean = [&](const char* key, bool& field) {
    field = reader.maybe_boolean(key).value_or(field);
  };
  boolean("packed", options.packed);
  boolean("pack_kernels", options.pack_kernels);
  boolean("merge_kernels", options.merge_kernels);
  boolean("overlap", options.overlap);
  reader.finish();
  return options;
}

void read_max_candidates(ObjectReader& reader, std::size_t& count) {
  count = static_cast<std::size_t>(
      reader.maybe_integer("max_candidates", 1, most_candidates).value_or(static_cast<i64>(count)));
}

/// An echoed request states no format.
void check_format(ObjectReader& reader, const char* format) {
  if (reader.has("format") || reader.has("version"))
    check_json_header(reader, format, "write it by the description of this version");
}

/// A choice of `fixed` that another key leaves without effect.
struct VoidChoice {
  const char* key;
  bool given;
};

void refuse(const ObjectReader& fixed, std::initializer_list<VoidChoice> choices, const char* why) {
  for (const VoidChoice& choice : choices)
    if (choice.given)
      fixed.fail(choice.key, std::string("has no effect: ") + why + "; leave one of them out");
}

/// `training` names the key that says whether there is a backward pass.
void check_effects(const ObjectReader& reader, const Constraints& fixed, bool training,
                   const std::string& training_key) {
  if (fixed.ring == 1)
    refuse(reader,
           {{"method", fixed.method.has_value()},
            {"layout", fixed.layout.has_value()},
            {"dkv_return", fixed.dkv_return.has_value()},
            {"gated", fixed.gated}},
           "/fixed/ring is 1, and one row owns all tokens and exchanges nothing");
  if (const std::string why = return_refused(fixed); !why.empty()) reader.fail("dkv_return", why);
  if (const std::string why = gates_refused(fixed, {1, fixed.ring.value_or(2), 1}); !why.empty())
    reader.fail("gated", why);
  if (const std::string why = phases_refused(fixed, fixed.ring); !why.empty())
    reader.fail("gate_phases", why);
  if (fixed.ring == 1 || fixed.ulysses == 1)
    refuse(reader, {{"order", fixed.order.has_value()}},
           "/fixed/ring or /fixed/ulysses is 1, and only one of the axes has ranks");
  if (training) return;
  // Stage 3 shards parameters too, and stage 0 decides against that.
  refuse(reader,
         {{"dkv_return", fixed.dkv_return.has_value()},
          {"recompute", fixed.recompute.has_value()},
          {"offload", fixed.offload.has_value()},
          {"zero_stage", fixed.zero_stage == 1 || fixed.zero_stage == 2}},
         (training_key + " is false, which leaves out the backward pass and the update after it").c_str());
}

void read_request(ObjectReader& reader, PlanRequest& request) {
  if (const auto fixed = reader.maybe_object("fixed")) {
    request.fixed = fixed_in(*fixed);
    if (request.fixed.head_chunks.value_or(1) > max_head_chunks)
      fixed->fail("head_chunks", fmt::format("is more than {}", max_head_chunks));
  }
  request.workload = workload_in(reader.object("workload"), request.fixed);
  if (const auto fixed = reader.maybe_object("fixed"))
    check_effects(*fixed, request.fixed, request.workload.training, "/workload/training");
  if (auto memory = reader.maybe_object("memory")) request.memory = memory_policy_in(*std::move(memory));
  if (auto execution = reader.maybe_object("execution"))
    request.execution = execution_options_in(*std::move(execution));
  if (reader.find("objective") != nullptr) request.objective = reader.enumeration<Objective>("objective");
  request.global_batch = reader.maybe_integer("global_batch", 1, max_batch);
  const bool expert_given = reader.object("workload").find("expert") != nullptr;
  request.search_expert = reader.maybe_boolean("search_expert").value_or(!expert_given);
  request.search_pipeline = reader.maybe_boolean("search_pipeline").value_or(false);
  request.expert_overlap = reader.maybe_boolean("expert_overlap").value_or(false);
  request.latent_kv = reader.maybe_boolean("latent_kv").value_or(false);
  request.gemm_efficiency = reader.maybe_number("gemm_efficiency", 0.01, 1).value_or(0);
  request.power_w = reader.maybe_number("power_w", 1, 1e5).value_or(0);
  read_max_candidates(reader, request.max_candidates);
}

AttentionShape shape_in(ObjectReader reader) {
  AttentionShape shape;
  const auto small = [&](const char* key, int most, std::optional<int> initial = {}) {
    const auto value = initial ? reader.maybe_integer(key, 1, most) : reader.integer(key, 1, most);
    return static_cast<int>(value.value_or(initial.value_or(0)));
  };
  shape.batch = reader.maybe_integer("batch", 1, max_batch).value_or(1);
  shape.q_tokens = shape.kv_tokens = reader.integer("tokens", 1, max_tokens);
  shape.query_heads = small("query_heads", max_heads);
  shape.kv_heads = small("kv_heads", max_heads, shape.query_heads);
  if (shape.query_heads % shape.kv_heads != 0)
    reader.fail("kv_heads", fmt::format("does not divide {} query heads", shape.query_heads));
  shape.head_dim_qk = small("head_dim_qk", max_head_dim);
  shape.head_dim_v = small("head_dim_v", max_head_dim, shape.head_dim_qk);
  shape.dtype = DType::bf16;
  if (reader.find("dtype") != nullptr) shape.dtype = reader.enumeration<DType>("dtype");
  reader.finish();
  return shape;
}

/// @param tokens that a query could see
Band band_in(ObjectReader& reader, i64 tokens) {
  const auto refuse_void = [&](i64 before, std::optional<i64> after) {
    if (masks_none(before, after, tokens))
      reader.fail("window",
                  fmt::format("has no effect: it reaches over all {} tokens; leave it out", tokens));
  };
  const bool causal = reader.maybe_boolean("causal").value_or(true);
  if (const Json* sides = reader.find("window"); sides != nullptr && sides->is_array()) {
    std::vector<i64> side;
    reader.array("window", [&](const Json& value, const std::string& at) {
      side.push_back(json_integer(value, reader.file(), at, 0, max_tokens));
    });
    if (side.size() != 2) reader.fail("window", "two sides are needed: tokens before and after a query");
    if (reader.maybe_boolean("causal").value_or(false))
      reader.fail("window", "shows a query later tokens, and /causal is true");
    refuse_void(side[0], side[1]);
    return {-side[1], side[0]};
  }
  const auto window = reader.maybe_integer("window", 1, max_tokens);
  if (window && !causal) reader.fail("window", "looks back from a causal query, and /causal is false");
  if (window) refuse_void(*window - 1, std::nullopt);
  if (window) return {0, *window - 1};
  return causal ? Band{0, unbounded} : Band{};
}

ScoreRules score_in(ObjectReader& reader) {
  constexpr double most = 1e6;
  ScoreRules score;
  score.scale = reader.maybe_number("scale", -most, most).value_or(0);
  score.softcap = reader.maybe_number("softcap", 0, most).value_or(0);
  score.dropout = reader.maybe_number("dropout", 0, 0.999999).value_or(0);
  return score;
}

void read_documents(ObjectReader& reader, AttentionRequest& request) {
  request.lengths = documents_in(reader);
  try {
    if (!request.lengths.empty()) check_documents(request.lengths, request.shape.q_tokens);
  } catch (const Error& error) {
    reader.fail("documents", error.what());
  }
  request.kv_lengths = documents_in(reader, "kv_documents");
  if (!request.kv_lengths.empty()) {
    if (request.kv_lengths.size() != request.lengths.size())
      reader.fail("kv_documents", "as many lengths as documents are needed");
    request.documents = cross_documents(request.lengths, request.kv_lengths);
    request.shape.kv_tokens = request.documents.cu_k.back();
    if (request.shape.kv_tokens < 1 || request.shape.kv_tokens > max_tokens)
      reader.fail("kv_documents", "the keys must sum to 1 to 2^40 tokens");
    return;
  }
  std::vector<i64> cu_seqlens{0};
  for (const i64 length : request.lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  request.documents = request.lengths.empty()
                          ? Documents::single(request.shape.q_tokens, request.shape.kv_tokens)
                          : Documents::packed(std::move(cu_seqlens));
}

void read_call(ObjectReader& reader, AttentionRequest& request) {
  request.shape = shape_in(reader.object("shape"));
  request.score = score_in(reader);
  request.sink = reader.maybe_boolean("sink").value_or(false);
  request.return_lse = reader.maybe_boolean("return_lse").value_or(false);
  request.training = reader.maybe_boolean("training").value_or(true);
  if (reader.find("backend") != nullptr) request.backend = reader.enumeration<Backend>("backend");
  read_documents(reader, request);
  const bool own_keys = request.kv_lengths.empty() && request.shape.kv_tokens == request.shape.q_tokens;
  request.band = band_in(reader, own_keys ? longest_document(request.lengths, request.shape.q_tokens)
                                          : std::max(request.shape.q_tokens, request.shape.kv_tokens));
  if (const auto fixed = reader.maybe_object("fixed")) {
    request.fixed = fixed_in(*fixed);
    if (request.fixed.head_chunks.value_or(1) > max_head_chunks)
      fixed->fail("head_chunks", fmt::format("is more than {}", max_head_chunks));
    check_effects(*fixed, request.fixed, request.training, "/training");
  }
  if (auto execution = reader.maybe_object("execution"))
    request.execution = execution_options_in(*std::move(execution));
  read_max_candidates(reader, request.max_candidates);
}

}  // namespace

std::unique_ptr<AttentionInput> read_attention_request(const std::string& text, const std::string& file,
                                                       const NoteSink& note) {
  const Json json = parse_json(text, file);
  ObjectReader reader(json, file, "");
  check_format(reader, "usp.attention_request");
  auto input = std::make_unique<AttentionInput>();
  const auto ranks = reader.maybe_integer("ranks", 1, most_threads);
  if (ranks.has_value() == reader.has("cluster"))
    reader.fail(ranks ? "cluster" : "ranks",
                ranks ? "excludes ranks, which are threads of this host"
                      : "is missing; give cluster, or ranks for threads of this host");
  read_call(reader, input->request);
  if (ranks && reader.has("calibration"))
    reader.fail("calibration", "is of a cluster, and ranks are threads of this host; give cluster instead");
  if (ranks) {
    input->cluster = thread_cluster(static_cast<int>(*ranks));
    input->calibration = uncalibrated(data_sheet_of(input->cluster));
    input->request.all_devices = true;
  } else {
    topology::ClusterRequest cluster;
    const StatedCluster stated = read_cluster(reader, cluster);
    const std::string calibration = maybe_name(reader, "calibration");
    load_named(file, [&] {
      input->cluster = load_cluster(cluster, note);
      // An echoed request states the calibration that its cluster names, or that it had none.
      const bool own = calibration == input->cluster.calibration;
      input->calibration = calibration == "uncalibrated"
                               ? uncalibrated(data_sheet_of(input->cluster))
                               : calibration_or_sheet(input->cluster, own ? "" : calibration, note);
    });
    if (const std::string remark = void_p2p(cluster, input->cluster, input->calibration); !remark.empty())
      note(remark);
    if (stated.devices || stated.digest) check_cluster(stated, cluster_summary(input->cluster), file);
  }
  if (!input->request.backend.value_or(Backend{})->on_gpu)
    check_transport(input->request.execution, input->cluster, file);
  reader.finish();
  input->request.cluster = &input->cluster;
  input->request.calibration = &input->calibration;
  return input;
}

std::unique_ptr<StepInput> read_plan_request(const std::string& text, const std::string& file,
                                             const NoteSink& note) {
  const Json json = parse_json(text, file);
  ObjectReader reader(json, file, "");
  check_format(reader, "usp.plan_request");
  auto input = std::make_unique<StepInput>();
  StepSources sources;
  sources.model = name_or_text(reader, "model", sources.model_config);
  const StatedCluster stated = read_cluster(reader, sources.cluster);
  sources.calibration = maybe_name(reader, "calibration");
  if ((sources.data_sheet = sources.calibration == "uncalibrated")) sources.calibration.clear();
  read_request(reader, input->request);
  reader.finish();
  load_named(file, [&] { load_sources(sources, *input, note); });
  check_transport(input->request.execution, input->cluster, file);
  if (const auto fault = request_fault(input->request))
    throw InvalidInput({file, 0, fault->pointer}, fault->why);
  // An echoed request states the calibration that its cluster names: nothing was asked for on another card.
  if (!sources.calibration.empty() && sources.calibration == input->cluster.calibration)
    input->calibration = calibration_of(input->cluster);
  if (stated.devices || stated.digest) check_cluster(stated, cluster_summary(input->cluster), file);
  return input;
}

}  // namespace usp
