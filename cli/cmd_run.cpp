// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/units.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/runtime/run_print.hpp"
#include "usp/runtime/trace.hpp"
#include "usp/runtime/verify.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct TensorFlags {
  std::string q, k, v, d_out;
};

struct ResultFlags {
  bool verify = false, debug_nan = false, dry_run = false;
  std::optional<double> tolerance;
  std::string output, trace;
};

struct AllFlags {
  RunFlags run;
  TensorFlags files;
  ResultFlags wanted;
};

/// Random tensors, with those of the files in their place.
CallTensors tensors_of(const LoadedCall& call, const TensorFlags& files, std::uint64_t seed) {
  CallTensors tensors = random_tensors(call.plan, call.documents, seed);
  const AttentionShape& s = call.plan.shape;
  const auto read = [&](const std::string& file, i64 tokens, i64 heads, i64 width, HostTensor& target) {
    if (!file.empty()) target = read_tensor(file, s.dtype, {s.batch, tokens, heads, width});
  };
  const i64 queries = call.documents.cu_q.back(), keys = call.documents.cu_k.back();
  read(files.q, queries, s.query_heads, s.head_dim_qk, tensors.q);
  read(files.k, keys, s.kv_heads, s.head_dim_qk, tensors.k);
  read(files.v, keys, s.kv_heads, s.head_dim_v, tensors.v);
  read(files.d_out, queries, s.query_heads, s.head_dim_v, tensors.d_out);
  return tensors;
}

/// A seed of which nothing is drawn.
void check_seed(const RunFlags& flags, const LoadedCall& call, const TensorFlags& files) {
  const bool all_given = !files.q.empty() && !files.k.empty() && !files.v.empty() &&
                         (!files.d_out.empty() || !call.options.training);
  const ScoreRules& score = call.plan.score;
  if (flags.seed && all_given && score.dropout == 0 && score.block_tokens == 0 && !call.plan.sink)
    throw UsageError("--seed draws what no file gives, and here files give everything; leave it out");
}

void print(const RunSummary& summary, bool json) {
  std::cout << (json ? run_json(summary) : run_text(summary)) << std::flush;
  if (const std::string fault = run_fault(summary); !fault.empty()) throw VerificationError(fault);
}

RunRequest request_of(const AllFlags& flags, const LoadedCall& call) {
  RunRequest request = run_request(flags.run, call);
  request.q = flags.files.q;
  request.k = flags.files.k;
  request.v = flags.files.v;
  request.d_out = flags.files.d_out;
  request.verify = flags.wanted.verify;
  request.tolerance = flags.wanted.tolerance;
  request.dry_run = flags.wanted.dry_run;
  request.debug_nan = flags.wanted.debug_nan;
  return request;
}

RunSummary summary_of(const AllFlags& flags, const LoadedCall& call, RunResult run) {
  RunSummary summary;
  summary.request = request_of(flags, call);
  summary.plan = call.plan;
  summary.digest = plan_digest(call.file);
  summary.run = std::move(run);
  summary.tolerance = tolerance_of(call.plan.shape.dtype);
  return summary;
}

/// No tensor and no kernel: a plan that does not fit this host is checked too.
void dry_run_plan(const AllFlags& given, const Invocation& invocation) {
  const auto& [flags, files, wanted] = given;
  const std::string names =
      files.q + files.k + files.v + files.d_out + wanted.output + wanted.trace + flags.kernel;
  if (!names.empty() || flags.device || flags.ulysses_transport || flags.ring_transport ||
      flags.deterministic || wanted.verify || wanted.tolerance || wanted.debug_nan || flags.seed ||
      flags.comm.watchdog_s || !flags.devices.empty())
    throw UsageError(
        "--dry-run moves and computes nothing (usp explain --trace draws a plan without running it); leave "
        "out tensors, --seed, --kernel, --device, --devices, "
        "transports, --deterministic, --watchdog, --verify, --tolerance, --debug-nan, -o and --trace");
  const LoadedCall call = load_call(flags);
  if (comm::mpi_launched() || comm::torchrun_launched())
    throw UsageError("--dry-run plays all ranks in one process; start it without mpirun, srun or torchrun");
  RunResult run;
  {
    ProgressLine line(invocation);
    run = dry_run_call(call.plan, call.documents, call.options.training, &line);
  }
  print(summary_of(given, call, std::move(run)), invocation.json);
}

/// A comparison beyond this is announced with what it takes.
constexpr double announced_s = 60;

/// A wait, for people.
std::string waiting_time(double seconds) {
  if (seconds < 120) return format_fixed(seconds, 0) + " seconds";
  if (seconds < 7200) return format_fixed(seconds / 60, 0) + " minutes";
  if (seconds < 172800) return format_fixed(seconds / 3600, 0) + " hours";
  return format_fixed(seconds / 86400, 0) + " days";
}

std::string verify_note(const LoadedCall& call) {
  const DenseEffort effort = dense_effort(call.plan, call.documents, call.options.training);
  if (effort.seconds < announced_s) return "";
  return fmt::format(
      "--verify computes some {:.2g} scores in fp64 on the host, about {} on {} {}; fewer tokens or heads "
      "take less, Ctrl-C ends it",
      effort.scores, waiting_time(effort.seconds), effort.cores, effort.cores == 1 ? "core" : "cores");
}

void run_plan(const AllFlags& given, const Invocation& invocation) {
  const RunFlags& flags = given.run;
  const TensorFlags& files = given.files;
  const ResultFlags& wanted = given.wanted;
  LoadedCall call;
  const CallTensors tensors = before_meeting(flags, [&] {
    call = load_call(flags);
    if (!files.d_out.empty() && !call.options.training)
      throw UsageError("--dout is the gradient of a backward pass, this run has none; leave it out");
    if (wanted.tolerance && !wanted.verify)
      throw UsageError("--tolerance bounds what --verify finds; give both");
    check_seed(flags, call, files);
    comm::check_torchrun_ranks(call.plan.mesh.size());
    check_machine(call.plan, call.options);
    return tensors_of(call, files, flags.seed.value_or(0));
  });
  call.options.collect = wanted.verify || !wanted.output.empty();
  call.options.call.measure_workspace = true;
  call.options.call.debug_nan = wanted.debug_nan;
  call.options.call.stream_times = !wanted.trace.empty();
  call.options.prepare = [&] {
    const std::string effort = wanted.verify ? verify_note(call) : "";
    for (const std::string& text : {call.note, call.network_note, effort})
      if (!text.empty()) note(invocation, text);
    if (!wanted.output.empty()) check_results_folder(wanted.output);
    if (!wanted.trace.empty()) check_writable(wanted.trace);
  };
  std::optional<RunResult> run = with_progress(invocation, call.options, [&] {
    return run_attention(call.plan, call.documents, tensors, call.options);
  });
  if (!run) return;
  for (const std::string& text : run->notes()) note(invocation, text);
  RunSummary summary = summary_of(given, call, std::move(*run));
  if (wanted.tolerance) summary.tolerance = {*wanted.tolerance, *wanted.tolerance, true};
  if (wanted.verify) {
    ProgressLine line(invocation);
    const kernels::Oracle truth =
        dense_attention(call.plan, call.documents, tensors, call.options.training, &line);
    summary.errors = errors_of(summary.run, truth, call.plan.shape.dtype);
  }
  if (!wanted.output.empty()) write_results(wanted.output, call.plan, call.documents, summary.run);
  if (!wanted.trace.empty()) write_file(wanted.trace, chrome_trace(call.plan, call.documents, summary.run));
  print(summary, invocation.json);
}

void add_tensor_flags(const Verb& verb, TensorFlags& files) {
  FlagGroup group(verb, "Tensors");
  const auto tensor = [&](const char* name, std::string& target, const char* help) {
    group.option(name, target, help)->type_name(input_file);
  };
  tensor("--q", files.q, ".npy file [batch][token][head][width]: f2, f4, f8, or u2 as bits of bf16 (random)");
  tensor("--k", files.k, "the same of keys (random)");
  tensor("--v", files.v, "the same of values (random)");
  tensor("--dout", files.d_out, "the same of the output's gradient (random)");
}

void add_result_flags(const Verb& verb, ResultFlags& wanted) {
  FlagGroup group(verb, plain_group);
  group.flag(
      "--verify", wanted.verify,
      "compare with dense attention in fp64: exit 6 where a row of a head is off by more roundings of its "
      "own terms than meet there, or a whole tensor beyond fp64 1e-10, fp32 1e-5, bf16 and fp16 1e-2 (out, "
      "lse) and 2e-2 (gradients), RMS, and beyond what its terms allow. Its time grows with the square of "
      "the tokens: ten seconds for 28 heads of 1,024 on two cores");
  group.number("--tolerance", wanted.tolerance, "bound of --verify for whole tensors instead", 0.0);
  group.flag("--dry-run", wanted.dry_run,
             "play the schedules of all ranks without payload: count bytes, match sends and receives");
  group.flag("--debug-nan", wanted.debug_nan, "what has not arrived yet reads as NaN");
  group
      .option("-o,--output", wanted.output,
              "folder for out.npy, lse.npy, dq.npy, dk.npy, dv.npy, in global token order")
      ->type_name(results_folder);
  group.option("--trace", wanted.trace, "Chrome trace of planned and executed ticks (Perfetto opens it)")
      ->type_name(output_file);
}

}  // namespace

void register_run(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(
      app, invocation, "run",
      "Execute a plan on threads of this host, on processes of mpirun, srun or torchrun, or on GPUs, "
      "count its bytes, verify its results",
      "  usp run plan.json --verify\n"
      "  usp run plan.json --q q.npy --k k.npy --v v.npy --forward-only -o results\n"
      "  usp run plan.json --seed 7 --verify --json\n"
      "  usp run plan.json --dry-run\n"
      "  usp run plan.json --device cuda --verify\n"
      "  mpirun -n 6 usp run plan.json --verify");
  auto flags = std::make_shared<AllFlags>();
  add_run_flags(verb, flags->run);
  add_tensor_flags(verb, flags->files);
  add_result_flags(verb, flags->wanted);
  verb.runs([flags, &invocation] { (flags->wanted.dry_run ? dry_run_plan : run_plan)(*flags, invocation); },
            [flags](const Error& error) {
              if (!flags->wanted.dry_run) comm::notify_other_ranks(comm_options(flags->run), error);
            });
}

}  // namespace usp::cli
