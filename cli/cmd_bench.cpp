// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/runtime/bench.hpp"

#include <iostream>

namespace usp::cli {

void register_bench(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = add_verb(app, invocation, "bench",
                            "Time a plan on threads of this host beside one rank with the same kernel",
                            "  usp bench plan.json\n"
                            "  usp bench plan.json --repeat 20 --json");
  auto flags = add_run_flags(*verb);
  auto repeat = std::make_shared<int>(5);
  verb->add_option("--repeat", *repeat, "runs after one to warm up; the median counts")
      ->check(within(1, 10000))
      ->capture_default_str();
  verb->callback([=, &invocation] {
    invocation.action = [=, &invocation] {
      LoadedCall call = load_call(*flags);
      call.options.repeat = *repeat;
      check_machine(call.plan, call.options);
      const CallTensors tensors = random_tensors(call.plan, call.documents, flags->seed);
      const auto report = bench_call(call.plan, call.documents, tensors, call.options);
      if (!report) return;
      std::cout << (invocation.json ? bench_json(*report) : bench_text(*report));
    };
  });
}

}  // namespace usp::cli
