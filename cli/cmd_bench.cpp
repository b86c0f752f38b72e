// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/runtime/bench.hpp"
#include "usp/runtime/gpu_bench.hpp"

#include <iostream>

namespace usp::cli {
namespace {

void bench(const RunFlags& flags, int repeat, const Invocation& invocation) {
  LoadedCall call;
  const CallTensors tensors = before_meeting(flags, [&] {
    call = load_call(flags);
    call.options.repeat = repeat;
    check_torchrun_ranks(call.plan.mesh.size());
    check_machine(call.plan, call.options);
    return random_tensors(call.plan, call.documents, flags.seed.value_or(0));
  });
  call.options.prepare = [&] {
    for (const std::string& text : {call.note, call.network_note})
      if (!text.empty()) note(invocation, text);
  };
  if (flags.gpu) {
    auto report = gpu_bench_call(call.plan, call.documents, tensors, call.options);
    if (!report) return;
    report->request = run_request(flags, call);
    for (const std::string& text : report->notes) note(invocation, text);
    std::cout << (invocation.json ? gpu_bench_json(*report) : gpu_bench_text(*report));
    return;
  }
  auto report = bench_call(call.plan, call.documents, tensors, call.options);
  if (!report) return;
  report->request = run_request(flags, call);
  std::cout << (invocation.json ? bench_json(*report) : bench_text(*report));
}

}  // namespace

void register_bench(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      add_verb(app, invocation, "bench",
               "Time a plan on threads of this host or on processes of mpirun, srun or torchrun beside one "
               "rank with the same kernel, or on GPUs by their own clocks",
               "  usp bench plan.json\n"
               "  usp bench plan.json --repeat 20 --json\n"
               "  usp bench plan.json --gpu --repeat 20");
  auto flags = add_run_flags(*verb);
  auto repeat = std::make_shared<int>(5);
  verb->add_option("--repeat", *repeat, "runs after one to warm up; the median counts")
      ->check(within(1, 10000))
      ->capture_default_str();
  verb->add_flag("--gpu", flags->gpu,
                 "--device cuda, timed on the GPUs' streams: TF/s, GB/s of each axis, exposed communication");
  verb->callback(
      [=, &invocation] { invocation.action = [=, &invocation] { bench(*flags, *repeat, invocation); }; });
}

}  // namespace usp::cli
