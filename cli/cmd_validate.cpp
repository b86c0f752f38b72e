// SPDX-License-Identifier: Apache-2.0
#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/score.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/slurm.hpp"
#include "usp/topology/synthetic.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

std::string machine(const topology::Cluster& cluster) {
  return counted(cluster.nodes.size(), "host") + ", " + counted(cluster.devices.size(), "device") + ", " +
         counted(cluster.nics.size(), "NIC");
}

std::string plan_summary(const std::string& text, const std::string& file) {
  const PlanFile plan = read_plan(text, file);
  check_predictions(plan, file);
  return fmt::format("{} on {}, ring {} x ulysses {}, {} tokens, digest {}", plan.model, plan.cluster,
                     plan.mesh.ring(), plan.mesh.ulysses, format_tokens(plan.capacity_tokens),
                     plan_digest(plan));
}

std::string model_summary(const std::string& text, const std::string& file) {
  const Model model = read_model_config(text, file);
  return fmt::format("{}, {}, {} with softmax attention, hidden {}", model.family,
                     counted(model.layers, "layer"), model.attention_layers(), model.hidden);
}

std::string calibration_summary(const std::string& text, const std::string& file) {
  const Calibration calibration = parse_calibration(text, file);
  return calibration.name + " measured on " + calibration.device + ", " +
         counted(calibration.sources.size(), "source");
}

std::string nccl_tests_summary(const std::string& text, const std::string& file) {
  const topology::NcclTestsResult result = topology::read_nccl_tests(text, file);
  return result.operation.value_or("an operation it does not name") + " on " +
         (result.ranks ? counted(*result.ranks, "rank") : "an unknown number of ranks") + ", " +
         counted(result.rows.size(), "row");
}

std::string slurm_summary(const std::string& text, const std::string& file) {
  const topology::SlurmTopology topology = topology::read_slurm_topology(text, file);
  const std::string parts = topology.blocks.empty() ? counted(topology.switches.size(), "switch")
                                                    : counted(topology.blocks.size(), "block");
  return fmt::format("{}, {}", parts, counted(topology.node_names.size(), "node"));
}

std::string score_summary(const std::string& text, const std::string& file) {
  const auto rows = parse_score_csv(text, file);
  const auto timed =
      std::count_if(rows.begin(), rows.end(), [](const ScoreRow& row) { return row.seconds.has_value(); });
  return fmt::format("{}, {} with a time", counted(rows.size(), "row"), timed);
}

std::string lengths_summary(const std::string& text, const std::string& file) {
  return counted(read_document_lengths(text, file).size(), "document length");
}

/// A kind of file: its word for --as, what it is called, and its reader, which throws or sums up.
struct Kind {
  const char* word;
  const char* title;
  std::string (*read)(const std::string& text, const std::string& file);
};

constexpr Kind kinds[] = {
    {"cluster", "cluster JSON",
     [](const std::string& t, const std::string& f) { return machine(topology::read_cluster_json(t, f)); }},
    {"synthetic", "cluster description",
     [](const std::string& t, const std::string& f) { return machine(topology::read_synthetic(t, f)); }},
    {"nvidia-smi", "nvidia-smi topo -m text",
     [](const std::string& t, const std::string& f) {
       return machine(topology::read_nvidia_smi_topo(t, f));
     }},
    {"nccl-xml", "NCCL topology XML",
     [](const std::string& t, const std::string& f) { return machine(topology::read_nccl_xml(t, f)); }},
    {"nccl-tests", "nccl-tests output", nccl_tests_summary},
    {"slurm", "Slurm topology.conf", slurm_summary},
    {"devices", "device presets",
     [](const std::string& t, const std::string& f) {
       return counted(topology::read_device_presets(t, f).size(), "device");
     }},
    {"plan", "plan", plan_summary},
    {"calibration", "calibration", calibration_summary},
    {"model", "Hugging Face config", model_summary},
    {"score", "score CSV", score_summary},
    {"lengths", "document lengths", lengths_summary},
};

std::vector<std::string> kind_words() {
  std::vector<std::string> words;
  for (const Kind& kind : kinds) words.emplace_back(kind.word);
  return words;
}

const Kind& kind_named(const std::string& word, const std::string& flag = "--as") {
  for (const Kind& kind : kinds)
    if (word == kind.word) return kind;
  throw UsageError(flag + ": '" + word + "' is not one of " + join(kind_words(), ", "));
}

const char* json_kind(const Json& json, const std::string& file) {
  if (!json.is_object())
    throw InvalidInput({file, 0, ""}, "holds JSON, but no file of this project is a list or a value");
  const auto format = json.find("format");
  if (format != json.end() && format->is_string()) {
    const std::string word = format->get<std::string>();
    if (word == "usp.cluster") return "cluster";
    if (word == "usp.devices") return "devices";
    if (word == "usp.plan") return "plan";
    if (word == "usp.calibration") return "calibration";
    throw InvalidInput({file, 0, "/format"},
                       "'" + word +
                           "' is no format that this program reads; what verbs print with "
                           "--json is described by the schemas in configs/schema");
  }
  if (json.contains("collectives") && json.contains("device")) return "calibration";
  if (json.contains("model_type") || json.contains("architectures") || json.contains("text_config"))
    return "model";
  throw InvalidInput(
      {file, 0, ""},
      "holds JSON of no known kind: it has no \"format\", no \"model_type\" and no \"collectives\"; "
      "name the kind with --as");
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// The kind of a text by what only that kind holds.
const char* detect(const std::string& raw, const std::string& file) {
  const std::string start_of_file = trim(std::string_view(raw).substr(0, 4096));
  if (start_of_file.empty()) throw InvalidInput({file, 0, ""}, "the file is empty");
  if (start_of_file.front() == '{') return json_kind(parse_json(raw, file), file);
  const std::string text = topology::clean_text(raw, file).text;
  const std::string start = trim(std::string_view(text).substr(0, 4096));
  if (start.empty()) throw InvalidInput({file, 0, ""}, "the file is empty");
  if (start.front() == '{' || start.front() == '[') return json_kind(parse_json(text, file), file);
  if (start.front() == '<') return "nccl-xml";
  const std::string small = lower(text);
  if (has(small, "switchname=") || has(small, "blockname=")) return "slurm";
  if (has(small, "algbw") || has(small, "nthread")) return "nccl-tests";
  if (has(small, "machine,") || has(small, ",iters_per_s")) return "score";
  if (has(small, "gpu:") && !has(small, "gpu0")) return "synthetic";
  bool numbers = true;
  for_each_line(text, [&](long, std::string_view line) {
    const std::string word = trim(line);
    numbers = numbers && (word.empty() || word.front() == '#' ||
                          word.find_first_not_of("0123456789") == std::string::npos);
  });
  if (numbers) return "lengths";
  if (has(small, "gpu0") || has(small, "nv1") || has(small, "pix") || has(small, "sys")) return "nvidia-smi";
  throw InvalidInput({file, 0, ""}, "is of no kind that this program knows; name it with --as");
}

struct ValidateFlags {
  std::string file;
  const Kind* as = nullptr;  ///< null: by the content
};

void validate_file(const ValidateFlags& flags, const Invocation& invocation) {
  const std::string& name = flags.file;
  const std::string text = read_file(name);
  const Kind& kind = flags.as ? *flags.as : kind_named(detect(text, name));
  const std::string summary = kind.read(text, name);
  if (!invocation.json) {
    std::cout << "ok: " << name << " (" << kind.title << "): " << summary << "\n";
    return;
  }
  Json json = json_header("usp.validate");
  json["request"] = {{"file", name}, {"as", flags.as ? Json(flags.as->word) : Json(nullptr)}};
  json["kind"] = kind.word;
  json["ok"] = true;
  json["summary"] = summary;
  std::cout << json.dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace

void register_validate(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "validate", "Check a file that this program reads or writes",
                             "  usp validate cluster.json\n"
                             "  usp validate plan.json --json\n"
                             "  usp validate topo.txt --as nvidia-smi");
  auto flags = std::make_shared<ValidateFlags>();
  FlagGroup group(verb, plain_group);
  group.option("FILE", flags->file, "the file, '-' for stdin")->required()->type_name(input_file);
  group.parsed("--as", flags->as,
               "its kind, where it should not be told from its content: " + choice(kind_words()),
               [](const std::string& word, const std::string& flag) { return &kind_named(word, flag); });
  verb.runs([flags, &invocation] { validate_file(*flags, invocation); });
}

}  // namespace usp::cli
