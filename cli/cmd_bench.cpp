// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"
#include "run_flags.hpp"

#include "usp/runtime/bench.hpp"
#include "usp/runtime/gpu_bench.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct BenchFlags {
  RunFlags run;
  int repeat = 5;
};

void bench(const BenchFlags& given, const Invocation& invocation) {
  const RunFlags& flags = given.run;
  LoadedCall call;
  const CallTensors tensors = before_meeting(flags, [&] {
    call = load_call(flags);
    call.options.repeat = given.repeat;
    comm::check_torchrun_ranks(call.plan.mesh.size());
    check_machine(call.plan, call.options);
    return random_tensors(call.plan, call.documents, flags.seed.value_or(0));
  });
  call.options.prepare = [&] {
    for (const std::string& text : {call.note, call.network_note})
      if (!text.empty()) note(invocation, text);
  };
  if (flags.gpu) {
    auto report = with_progress(invocation, call.options, [&] {
      return gpu_bench_call(call.plan, call.documents, tensors, call.options);
    });
    if (!report) return;
    report->request = run_request(flags, call);
    for (const std::string& text : report->notes) note(invocation, text);
    std::cout << (invocation.json ? gpu_bench_json(*report) : gpu_bench_text(*report));
    return;
  }
  auto report = with_progress(invocation, call.options,
                              [&] { return bench_call(call.plan, call.documents, tensors, call.options); });
  if (!report) return;
  report->request = run_request(flags, call);
  std::cout << (invocation.json ? bench_json(*report) : bench_text(*report));
}

}  // namespace

void register_bench(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "bench",
               "Time a plan on threads of this host or on processes of mpirun, srun or torchrun beside one "
               "rank with the same kernel, or on GPUs by their own clocks",
               "  usp bench plan.json\n"
               "  usp bench plan.json --repeat 20 --json\n"
               "  usp bench plan.json --gpu --repeat 20");
  auto flags = std::make_shared<BenchFlags>();
  add_run_flags(verb, flags->run);
  FlagGroup group(verb, plain_group);
  group.number("--repeat", flags->repeat, "runs after one to warm up; the median counts", 1, 10000)
      ->capture_default_str();
  group.flag("--gpu", flags->run.gpu,
             "--device cuda, timed on the GPUs' streams: TF/s, GB/s of each axis, exposed communication");
  verb.runs([flags, &invocation] { bench(*flags, invocation); },
            [flags](const Error& error) { comm::notify_other_ranks(comm_options(flags->run), error); });
}

}  // namespace usp::cli
