// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "flag_group.hpp"
#include "interrupt.hpp"
#include "progress.hpp"
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/file_lock.hpp"
#include "usp/base/text.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/planner/calibration_add.hpp"
#include "usp/planner/run_rows.hpp"
#include "usp/planner/score.hpp"
#include "usp/runtime/calibrate.hpp"
#include "usp/schedule/words.hpp"
#include "usp/topology/cluster_io.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>

namespace usp::cli {
namespace {

constexpr double quick_s = 8;

struct CalibrateFlags {
  CalibrateOptions options;
  std::optional<double> max_seconds;
  CommFlags comm;
  std::string output = "calibration.json", cluster_file;
  std::string rows, cluster, plan;  ///< of --add, --cluster and --plan
};

/// "copy_engine,nccl"
std::vector<Transport> parse_transports(const std::string& text, const std::string& flag) {
  std::vector<Transport> transports;
  for (const std::string& word : split(text, ',')) transports.push_back(parse_word<Transport>(word, flag));
  return transports;
}

/// --add measures nothing: flags of a measurement beside it have no effect.
void check_add(const CalibrateFlags& flags, const CLI::App& verb) {
  if (flags.rows.empty()) {
    for (const auto& [name, value] : {std::pair("--cluster", flags.cluster), std::pair("--plan", flags.plan)})
      if (!value.empty()) throw UsageError(fmt::format("{} belongs to what --add reads; give both", name));
    return;
  }
  if (flags.cluster.empty())
    throw UsageError("--add prices its rows on their machine; name it with --cluster");
  if (flags.output == "-") throw UsageError("--add corrects the calibration of -o, which has to be a file");
  const std::set<std::string> read{"--add",    "--cluster", "--plan",  "-o",
                                   "--output", "--json",    "--quiet", "--color"};
  for (const CLI::Option* option : verb.get_options())
    if (option->count() > 0 && !option->get_lnames().empty() &&
        read.count("--" + option->get_lnames().front()) == 0)
      throw UsageError("--" + option->get_lnames().front() +
                       " is of a measurement, and --add makes none; leave it out");
}

std::string lock_of(const std::string& output) {
  return output + ".lock";
}

std::string taken_text(const std::string& output) {
  return fmt::format("another usp calibrate writes {}; wait for it, or give another -o", output);
}

/// A table of rows, or the JSON of a run of a plan.
std::vector<ScoreRow> added_rows(const CalibrateFlags& flags, const CalibrationFile& calibration,
                                 const topology::Cluster& cluster) {
  const std::string text = read_file(flags.rows);
  if (!is_json_document(text)) {
    if (!flags.plan.empty()) throw UsageError("--plan is of a run in JSON, and --add names a table of rows");
    return parse_score_csv(text, flags.rows);
  }
  if (flags.plan.empty())
    throw UsageError("--add names the JSON of a run, whose call its plan describes; name that with --plan");
  auto rows = run_rows(text, flags.rows, read_plan(read_file(flags.plan), flags.plan));
  check_run_machine(text, flags.rows, calibration, cluster);
  return rows;
}

std::string corrections_text(const CorrectedCalibration& corrected) {
  std::string text;
  for (const Correction& c : corrected.corrections)
    text += fmt::format("{}: times x {:.4g}, by {} {}\n", c.curve, c.factor, c.rows,
                        c.rows == 1 ? "row" : "rows");
  return text;
}

void add_measured_rows(const CalibrateFlags& flags, const Invocation& invocation) {
  if (!comm::first_of_launch()) return;  // a file is corrected once
  topology::ClusterRequest request;
  request.source = flags.cluster;
  const topology::Cluster cluster = usp::load_cluster(request, note_sink(invocation));
  const FileLock lock(lock_of(flags.output), taken_text(flags.output));
  const CalibrationFile before = read_calibration_file(read_file(flags.output), flags.output);
  const CorrectedCalibration corrected =
      add_rows(before, cluster, added_rows(flags, before, cluster), flags.rows);
  const std::string text = write_calibration(corrected.content);
  write_file(flags.output, text);
  note(invocation, "wrote " + flags.output);
  std::cout << (invocation.json ? text : corrections_text(corrected));
}

std::string partial_of(const std::string& output) {
  return output + ".partial";
}

/// What the names of files say.
CalibrateOptions options_of(const CalibrateFlags& flags) {
  CalibrateOptions options = flags.options;
  options.max_seconds = flags.max_seconds.value_or(options.quick ? quick_s : options.max_seconds);
  options.comm = comm_options(flags.comm);
  // As seen from the cluster's file, which names it.
  options.calibration_file = flags.output;
  if (!flags.cluster_file.empty() && flags.cluster_file != "-") {
    const std::filesystem::path folder = std::filesystem::absolute(flags.cluster_file).parent_path();
    options.calibration_file = std::filesystem::absolute(flags.output).lexically_proximate(folder).string();
  }
  options.name = std::filesystem::path(flags.output).stem().string();
  // Beside a device or a pipe nothing is kept.
  if (flags.output != "-" && file_identity(flags.output, 1)) options.partial = partial_of(flags.output);
  return options;
}

void write_results(const CalibrateFlags& flags, const CalibrateOptions& options,
                   const CalibrateResult& result, const Invocation& invocation) {
  const std::string text = write_calibration(result.calibration);
  static_cast<void>(read_calibration_file(text, flags.output));  // nothing is written that no verb reads
  write_file(flags.output, text);
  if (flags.output != "-") note(invocation, "wrote " + flags.output);
  if (!flags.cluster_file.empty()) {
    write_file(flags.cluster_file, topology::write_cluster_json(result.cluster));
    note(invocation, "wrote " + flags.cluster_file);
  }
  if (!options.partial.empty()) static_cast<void>(std::remove(options.partial.c_str()));
  if (flags.output == "-") return;
  std::cout << (invocation.json ? text : calibrate_text(result));
}

void run_calibrate(const CalibrateFlags& flags, const Invocation& invocation) {
  if (flags.output == "-" && invocation.json)
    throw UsageError("-o - prints the calibration on stdout, and so does --json; give one of them");
  if (flags.output == "-" && !flags.cluster_file.empty())
    throw UsageError("--write-cluster names the calibration's file, which -o - has not; give -o a file");
  CalibrateOptions options = options_of(flags);
  const std::string network_note = flags.comm.trust_network ? trust_network_note() : "";
  options.note = [&](const std::string& text) { note(invocation, text); };
  std::optional<FileLock> lock;
  options.prepare = [&] {
    if (!network_note.empty()) note(invocation, network_note);
    check_writable(flags.output);
    if (!options.partial.empty()) lock.emplace(lock_of(flags.output), taken_text(flags.output));
    if (!options.partial.empty()) check_writable(options.partial);
    if (!flags.cluster_file.empty()) check_writable(flags.cluster_file);
  };
  const InterruptWatch watch;
  options.interrupted = InterruptWatch::interrupted;
  const auto result = with_progress(invocation, options, [&] { return calibrate(options); });
  if (result) write_results(flags, options, *result, invocation);
}

void add_measure_flags(const Verb& verb, CalibrateFlags& flags) {
  FlagGroup group(verb, plain_group);
  CalibrateOptions& options = flags.options;
  group.number("--ranks", options.ranks,
               "threads of this host (2; of GPUs one each); under mpirun, srun and torchrun their processes "
               "are the ranks",
               1, 1024);
  group.word("--device", options.device, word_choice<RunOn>() + ": what the ranks compute on (cpu)");
  group
      .option("--backend", options.kernels,
              fmt::format("kernels that are measured, with a comma between ({}; of GPUs all that run there)",
                          word_of(Backend{})))
      ->delimiter(',');
  group.option("--devices", options.devices, "GPUs of the ranks, such as 0,1, round and round (all)")
      ->delimiter(',')
      ->check(within(0));
  group.parsed(
      "--transport", options.transports,
      "between GPUs: " + word_choice<Transport>() + ", or both, with a comma between (all there are)",
      parse_transports);
  group.word("--dtype", options.dtype,
             "type of the tensors that kernels are measured with: " + word_choice<DType>() +
                 " (fp32; of GPUs bf16)");
  group.flag("--quick", options.quick, "few and small shapes in seconds: for a look, and for tests");
  group.number(
      "--max-seconds", flags.max_seconds,
      "sizes and repetitions are cut to stay within (300; with --quick 8); what every curve needs at least "
      "is measured all the same",
      0.1, 1e6);
  group.parsed("--nic", options.nic_gb_s,
               "line of a host's network in one direction, e.g. 10Gb/s (the most that was measured)",
               parse_line_rate_gb_s);
  group.option("--name", options.cluster, "name of the cluster (its first host, hosts x ranks)");
  add_comm_flags(verb, flags.comm, "");
}

void add_file_flags(const Verb& verb, CalibrateFlags& flags) {
  FlagGroup group(verb, plain_group);
  group
      .option("-o,--output", flags.output,
              "calibration file (calibration.json), - for stdout; FILE.partial keeps what is finished, and "
              "the next start goes on "
              "with it")
      ->type_name(output_file);
  group
      .option("--write-cluster", flags.cluster_file,
              "cluster file of these hosts, whose devices are the ranks: what --cluster takes, and names the "
              "calibration")
      ->type_name(output_file);
  group
      .option("--add", flags.rows,
              "calls measured since, a CSV as of usp score or what usp run, usp bench or bench --gpu printed "
              "with --json (give its --plan too, of --method ring where it has a ring): corrects the "
              "calibration of -o, rows of one "
              "rank its "
              "kernels, of Ulysses alone or a ring alone their transfers; measures nothing")
      ->type_name(input_file);
  group.option("--cluster", flags.cluster, "machine of the rows of --add: what --write-cluster wrote")
      ->type_name(input_file);
  group.option("--plan", flags.plan, "plan file of the run whose JSON --add names")->type_name(input_file);
  group.flag("--restart", flags.options.restart, "measure anew what FILE.partial has");
}

}  // namespace

void register_calibrate(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "calibrate",
                             "Measure transfers and kernels of this machine, on threads or on processes of "
                             "mpirun, srun or torchrun, for "
                             "plan, price and score",
                             "  usp calibrate --ranks 4 -o host.json --write-cluster cluster.json\n"
                             "  mpirun -n 8 usp calibrate -o hosts.json --write-cluster cluster.json\n"
                             "  usp calibrate --quick --json\n"
                             "  usp calibrate --add measured.csv --cluster cluster.json -o host.json\n"
                             "  usp plan attention --heads 8 --kv-heads 2 --head-dim 64 --seq 4096 --dtype "
                             "fp32 --cluster cluster.json");
  auto flags = std::make_shared<CalibrateFlags>();
  add_measure_flags(verb, *flags);
  add_file_flags(verb, *flags);
  verb.runs(
      [flags, app = &verb.app, &invocation] {
        check_add(*flags, *app);
        (flags->rows.empty() ? run_calibrate : add_measured_rows)(*flags, invocation);
      },
      [flags](const Error& error) { comm::notify_other_ranks(comm_options(flags->comm), error); });
}

}  // namespace usp::cli
