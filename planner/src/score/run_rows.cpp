// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/run_rows.hpp"

#include "run_document.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace usp {
namespace {

constexpr double most_s = 1e6;
constexpr std::int64_t most_layers = 1 << 20;

template <class Of>
std::optional<Of> one_of(const std::map<std::string_view, Of>& known, std::string_view word) {
  const auto found = known.find(word);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

std::optional<ScoreRow::Layout> layout_of(LayoutKind layout) {
  using L = ScoreRow::Layout;
  return one_of<L>({{"contiguous", L::contiguous}, {"zigzag", L::zigzag}, {"striped", L::striped}},
                   word_of(layout));
}

std::optional<ScoreRow::Type> type_of(DType dtype) {
  using T = ScoreRow::Type;
  return one_of<T>({{"bf16", T::bf16}, {"fp16", T::fp16}, {"fp32", T::fp32}}, word_of(dtype));
}

/// What rows of score do not describe of a call; empty: they describe it.
std::string beyond_rows(const AttentionPlan& plan, std::size_t documents) {
  const AttentionShape& shape = plan.shape;
  if (documents > 1) return "packed documents";
  if (shape.q_tokens != shape.kv_tokens) return "cross attention";
  if (shape.head_dim_qk != shape.head_dim_v) return "unequal head dims";
  if (plan.method != Method{}) return fmt::format("method {}", word_of(plan.method));
  if (plan.head_chunks > 1) return "head chunks";
  if (plan.prune) return "pruned transfers";
  if (plan.sink) return "sinks";
  if (!plan.replicated_q.empty() || !plan.replicated_k.empty()) return "replicated tokens";
  if (plan.score != ScoreRules{.scale = plan.score.scale}) return "rules of scores beside a scale";
  if (plan.band.diff_max < unbounded || (plan.band.diff_min > -unbounded && plan.band.diff_min != 0))
    return "windows";
  if (!layout_of(plan.layout)) return fmt::format("layout {}", word_of(plan.layout));
  if (!type_of(plan.shape.dtype)) return fmt::format("type {}", word_of(plan.shape.dtype));
  return "";
}

/// Rows are of the method that is the default: of a call that is plain but for it, that is the remedy.
std::string beyond_remedy(AttentionPlan plan, std::size_t documents) {
  if (plan.method == Method{}) return "run a plain causal or full call";
  plan.method = Method{};
  return beyond_rows(plan, documents).empty()
             ? fmt::format("plan the call with --method {} and run that", word_of(plan.method))
             : fmt::format("run a plain causal or full call by --method {}", word_of(plan.method));
}

ScoreRow row_of(const AttentionPlan& plan) {
  ScoreRow row;
  row.machine = "run";
  row.world = plan.mesh.size();
  row.causal = plan.band.diff_min == 0;
  row.dtype = *type_of(plan.shape.dtype);
  row.batch = plan.shape.batch;
  row.seq = plan.shape.q_tokens;
  row.heads = plan.shape.query_heads;
  row.kv_heads = plan.shape.kv_heads;
  row.head_dim = plan.shape.head_dim_qk;
  row.ring = plan.mesh.ring();
  row.ulysses = plan.mesh.ulysses;
  row.layout = *layout_of(plan.layout);
  row.exchange = ScoreRow::Exchange::no_packed;
  row.library = ScoreRow::Library::usp;
  return row;
}

ScoreRow::Direction direction_of(const ObjectReader& reader, const std::string& pass) {
  if (pass == "forward") return ScoreRow::Direction::forward;
  if (pass == "backward") return ScoreRow::Direction::backward;
  reader.fail("passes", fmt::format("'{}' is no pass", pass));
}

struct PassTime {
  double seconds = 0;
  std::string pointer;  ///< of the pass
};

/// Times by pass, of either form: a list, or an object with a pass each.
std::map<std::string, PassTime> times_of(ObjectReader& top) {
  std::map<std::string, PassTime> times;
  if (top.need("passes").is_array()) {
    top.array("passes", [&](const Json& value, const std::string& at) {
      ObjectReader pass(value, top.file(), at);
      const std::string name = pass.string("pass");
      const PassTime time{pass.number("time_s", 0, most_s), at};
      if (!times.emplace(name, time).second)
        pass.fail("pass", fmt::format("'{}' has an entry already; leave one out", name));
    });
    return times;
  }
  ObjectReader passes = top.object("passes");
  for (const char* name : {"forward", "backward"})
    if (auto pass = passes.maybe_object(name))
      if (const auto seconds = pass->maybe_number("time_s", 0, most_s))
        times[name] = {*seconds, std::string("/passes/") + name};
  return times;
}

/// Of the axis that has peers, where the run was one of GPUs: what the run was told, else what the plan says.
std::optional<Transport> transport_of(std::optional<Backend> ran, ObjectReader& request,
                                      const PlanFile& plan) {
  if (!ran || !(*ran)->on_gpu) return std::nullopt;
  const bool ulysses = plan.mesh.ulysses > 1;
  const char* const key = ulysses ? "ulysses_transport" : "ring_transport";
  if (request.has(key)) return request.enumeration<Transport>(key);
  return ulysses ? plan.ulysses_transport : plan.ring_transport;
}

/// The backend of a kernel by the name that a run prints: "cudnn", of the host with its instruction set
/// ("cpu-avx512"); empty: none.
std::optional<Backend> backend_of_kernel(const std::string& name) {
  return find_backend(name.substr(0, name.find('-')));
}

/// What a run says of its results, where it compared them.
void check_results(ObjectReader& top) {
  static const std::set<std::string> verdicts{"verified", "not_verified", "not_verifiable", "wrong"};
  const std::optional<std::string> verdict = top.maybe_string("verdict");
  if (verdict && verdicts.count(*verdict) == 0)
    top.fail("verdict", fmt::format("'{}' is none of {}", *verdict, fmt::join(verdicts, ", ")));
  if (verdict == "wrong") top.fail("verdict", "the run was wrong: its time is of no use");
  // What the type cannot hold is not known to be wrong, and takes its time all the same.
  if (!top.maybe_boolean("ok").value_or(true) && verdict != "not_verifiable")
    top.fail("ok", "the run failed: its time is of no use");
  if (auto traffic = top.maybe_object("traffic")) {
    constexpr double most_bytes = 1e18;
    const bool equal = traffic->maybe_number("planned_bytes", 0, most_bytes) ==
                       traffic->maybe_number("executed_bytes", 0, most_bytes);
    if (!equal || !traffic->maybe_boolean("equal").value_or(true))
      traffic->fail("equal", "other bytes moved than were planned: the time is of no use");
  }
}

void check_mesh(ObjectReader& top, const Mesh& planned) {
  if (top.integer("ranks", 1, max_ranks) != planned.size())
    top.fail("ranks", fmt::format("the plan has {}", counted(planned.size(), "rank")));
  ObjectReader mesh = top.object("mesh");
  const std::pair<const char*, int> degrees[] = {{"ring_outer", planned.ring_outer},
                                                 {"ring_inner", planned.ring_inner},
                                                 {"ring", planned.ring()},
                                                 {"ulysses", planned.ulysses}};
  for (const auto& [axis, degree] : degrees)
    if (mesh.integer(axis, 1, max_ranks) != degree) mesh.fail(axis, fmt::format("the plan has {}", degree));
}

void check_plan(ObjectReader& top, ObjectReader& request, const PlanFile& plan) {
  const std::string digest = plan_digest(plan);
  const char* const other = "is of another plan than --plan names; give the file that was run";
  if (request.string("plan_digest") != digest) request.fail("plan_digest", other);
  if (top.has("plan_digest") && top.string("plan_digest") != digest) top.fail("plan_digest", other);
  check_mesh(top, plan.mesh);
}

/// Of the batch that ran. Throws InvalidInput where it is not as long as the plan's call.
std::size_t documents_of(ObjectReader& request, const AttentionPlan& call, const PlanFile& plan) {
  if (!request.has("documents")) return plan.documents.size();
  std::int64_t tokens = 0;
  std::size_t count = 0;
  request.array("documents", [&](const Json& value, const std::string& at) {
    const std::int64_t length = json_integer(value, request.file(), at, 1, max_tokens);
    if (tokens <= max_tokens) tokens += length;
    ++count;
  });
  if (tokens != call.shape.q_tokens)
    request.fail("documents", fmt::format("have {} together, and the plan's call {}: its time is of another "
                                          "call; run the whole one",
                                          counted(tokens, "token"), call.shape.q_tokens));
  return count;
}

/// Keys of a run where its rows have columns; what no key holds is the plan's.
std::map<std::string, std::string> keys_of(const ObjectReader& top, const std::string& pass) {
  std::map<std::string, std::string> keys{{"", "/request/plan_digest"}, {"iters_per_s", pass + "/time_s"},
                                          {"direction", pass},          {"world", "/ranks"},
                                          {"ring", "/mesh/ring"},       {"ulysses", "/mesh/ulysses"},
                                          {"backend", "/kernel"},       {"library", "/kernel"}};
  if (top.has("dtype")) keys["dtype"] = "/dtype";
  return keys;
}

/// What was asked for is what ran: else the file is of two runs.
void check_hardware(ObjectReader& top, ObjectReader& request) {
  const std::string kernel = top.string("kernel");
  const auto ran = backend_of_kernel(kernel);
  if (request.has("device")) {
    const std::string device = request.string("device");
    if (device != "cpu" && device != "cuda")
      request.fail("device", fmt::format("'{}' is none of cpu, cuda", device));
    if (ran && (device == "cuda") != (*ran)->on_gpu)
      request.fail("device", fmt::format("is {}, and the run computed with {}, a kernel of {}: no run prints "
                                         "both; give the JSON as it was printed",
                                         device, kernel, (*ran)->on_gpu ? "GPUs" : "the host"));
  }
  if (request.has("kernel")) {
    const std::string asked = request.string("kernel");
    const auto named = find_backend(asked);
    if (asked != kernel && !(named && named == ran))
      request.fail("kernel", fmt::format("is {}, and the run computed with {}: no run prints both; give the "
                                         "JSON as it was printed",
                                         asked, kernel));
  }
  const bool on_host = ran && !(*ran)->on_gpu;
  for (const char* of_gpus : {"devices", "ulysses_transport", "ring_transport"})
    if (on_host && request.has(of_gpus))
      request.fail(of_gpus, fmt::format("is of GPUs, and the run computed with {} on the host", kernel));
  if (!request.has("devices")) return;
  std::set<std::int64_t> asked;
  request.array("devices", [&](const Json& value, const std::string& at) {
    asked.insert(json_integer(value, top.file(), at, 0, max_ranks));
  });
  if (!top.has("devices")) return;
  top.array("devices", [&](const Json& value, const std::string& at) {  // "0 NVIDIA H200"
    const std::string device = json_string(value, top.file(), at);
    const bool named = std::any_of(asked.begin(), asked.end(), [&](std::int64_t ordinal) {
      return device.rfind(fmt::format("{} ", ordinal), 0) == 0;
    });
    if (!named)
      throw InvalidInput({top.file(), 0, at},
                         fmt::format("is {}, and /request/devices names {}", device, fmt::join(asked, ", ")));
  });
}

/// Whether its times are those of the kernels and transfers alone.
void check_worth(ObjectReader& top, ObjectReader& request) {
  check_results(top);
  if (request.maybe_boolean("deterministic").value_or(false))
    request.fail("deterministic", "other kernels add gradients in a fixed order; run without it");
  if (top.has("fallbacks") && !top.need("fallbacks").empty())
    top.fail(
        "fallbacks",
        "steps fell back to another kernel than the plan says: the time is of both; align the tensors, or "
        "run with --kernel of the fallback");
  if (request.maybe_boolean("dry_run").value_or(false))
    request.fail("dry_run", "nothing was computed or sent; give a run that executed the plan");
  if (request.maybe_boolean("debug_nan").value_or(false))
    request.fail("debug_nan", "the run looked at every step's values, which takes time; run without it");
}

}  // namespace

namespace {

/// Ranks that share a card each take their part of its time.
void check_cards(ObjectReader& top, const topology::Cluster& cluster) {
  const auto ranks = static_cast<std::size_t>(top.integer("ranks", 1, max_ranks));
  if (ranks > cluster.devices.size()) return;  // which add_rows refuses
  std::map<int, std::size_t> of_host;
  for (std::size_t rank = 0; rank < ranks; ++rank) ++of_host[cluster.devices[rank].node];
  std::size_t most = 0;
  for (const auto& [host, count] : of_host) most = std::max(most, count);
  const char* const run_again =
      "they share a card, and their time is not that of one rank; run with a GPU per rank";
  ObjectReader request = top.object("request");
  if (request.has("devices")) {
    std::vector<std::int64_t> named;
    request.array("devices", [&](const Json& value, const std::string& at) {
      named.push_back(json_integer(value, top.file(), at, 0, max_ranks));
    });
    std::set<std::int64_t> taken;  // ranks take them round and round
    for (std::size_t rank = 0; rank < most && !named.empty(); ++rank)
      taken.insert(named[rank % named.size()]);
    if (taken.size() < most)
      request.fail("devices", fmt::format("{} of a host ran on {}: {}", counted(most, "rank"),
                                          counted(taken.size(), "GPU"), run_again));
  }
  if (!top.has("devices")) return;
  std::map<std::string, std::size_t> of_device;
  std::size_t devices = 0;
  top.array("devices", [&](const Json& value, const std::string& at) {
    ++devices;
    if (++of_device[json_string(value, top.file(), at)] > of_host.size())
      throw InvalidInput({top.file(), 0, at},
                         fmt::format("is of another rank of its host too: {}", run_again));
  });
  if (devices != ranks)
    top.fail("devices",
             fmt::format("are {}, of {}; give the JSON as it was printed", devices, counted(ranks, "rank")));
}

}  // namespace

bool is_json_document(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

std::vector<ScoreRow> run_rows(const std::string& text, const std::string& file, const PlanFile& plan) {
  const Json json = parse_json(text, file);
  ObjectReader top(json, file, "");
  check_run_document(top);
  ObjectReader request = top.object("request");
  check_plan(top, request, plan);
  check_worth(top, request);
  check_hardware(top, request);
  const PlanLayer& layer = layer_at(plan, static_cast<std::size_t>(request.integer("layer", 0, most_layers)));
  const std::size_t documents = documents_of(request, layer.plan, plan);
  if (const std::string beyond = beyond_rows(layer.plan, documents); !beyond.empty())
    throw InvalidInput({file, 0, "request"},
                       fmt::format("is a call with {}, whose time tells no curve of the calibration; {}",
                                   beyond, beyond_remedy(layer.plan, documents)));
  if (const std::string_view dtype = word_of(layer.plan.shape.dtype);
      top.has("dtype") && top.string("dtype") != dtype)
    top.fail("dtype", fmt::format("the plan is of {}", dtype));
  std::vector<ScoreRow> rows;
  const auto times = times_of(top);
  if (times.empty()) top.fail("passes", "no pass has a time; give a run that executed the plan");
  if (request.boolean("forward_only") && times.count("backward") != 0)
    request.fail("forward_only",
                 "is true, and the run has a time of backward: no run prints both; give the "
                 "JSON as it was printed");
  const std::optional<Backend> ran = backend_of_kernel(top.string("kernel"));
  for (const auto& [pass, time] : times) {
    ScoreRow& row = rows.emplace_back(row_of(layer.plan));
    row.backend = ran;
    row.direction = direction_of(top, pass);
    row.seconds = time.seconds;
    row.keys = keys_of(top, time.pointer);
    if (const auto transport = transport_of(ran, request, plan)) row.transport = *transport;
  }
  return rows;
}

void check_run_machine(const std::string& text, const std::string& file, const CalibrationFile& calibration,
                       const topology::Cluster& cluster) {
  const Json json = parse_json(text, file);
  ObjectReader top(json, file, "");
  check_run_document(top);
  const std::string kernel = top.string("kernel");
  const auto backend = backend_of_kernel(kernel);
  const AttentionSurface& own = calibration.attention;
  const AttentionSurface* priced = nullptr;
  if (own.backend.empty())
    priced = &own;
  else if (backend)
    priced = surface_of(calibration, word_of(*backend));
  const bool other_library = priced != nullptr && priced->library && priced->library->name != kernel;
  if (other_library || !backend)
    top.fail("kernel",
             fmt::format("the run computed with {}, and calibration {} prices with {}; run the plan "
                         "with it, or calibrate anew",
                         kernel, calibration.name, own.library ? own.library->name : own.backend));
  check_cards(top, cluster);
  if (!top.has("devices")) return;
  top.array("devices", [&](const Json& value, const std::string& pointer) {
    const std::string device = json_string(value, file, pointer);
    if (device.find(calibration.device.name) == std::string::npos)
      throw InvalidInput({file, 0, pointer}, fmt::format("the run was on {}, and calibration {} is of {}",
                                                         device, calibration.name, calibration.device.name));
  });
}

}  // namespace usp
