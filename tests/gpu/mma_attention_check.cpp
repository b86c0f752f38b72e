// SPDX-License-Identifier: Apache-2.0
#include "device_problem.hpp"
#include "mma_bench.hpp"
#include "random_cases.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

/// The mma CUDA kernel, or that of another backend, against the reference on the host, over cases drawn from
/// all features at once:
///   mma_attention_check [--backend WORD] [cases [first seed]]    one line a case, exit 1 when one is wrong
///   mma_attention_check [--backend WORD] --bench [filter [warm-up seconds]]        TF/s
/// A GPU at its power limit slows down after some 40 ms of full load: rates of short and of long calls
/// compare after a warm-up of 0.2 s.
namespace usp::test {
namespace {

struct Expected {
  std::unique_ptr<Inputs> inputs;
  Results results;
  kernels::Oracle rows;
};

Expected expect(const Draw& draw) {
  Expected e;
  e.inputs = std::make_unique<Inputs>(draw.problem, draw.io, draw.d_o, draw.order);
  Trial trial(draw.problem, *e.inputs);
  trial.all(*kernels::make_reference_kernel());
  e.results = trial.results();
  e.rows = oracle_of(draw.problem, *e.inputs, draw.io);
  return e;
}

/// References are slow and independent: one thread each.
std::vector<Expected> expect_all(const std::vector<Draw>& draws) {
  std::vector<Expected> all(draws.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < draws.size(); i = next++) all[i] = expect(draws[i]);
    });
  for (std::thread& t : threads) t.join();
  return all;
}

struct Errors {
  double o, lse, dq, dk, dv, d_sink;
};

/// RMS error over the RMS of what is expected, which counts as at least 1e-6: below that, 16-bit
/// probabilities are zero and fp32 statistics round.
double relative_error(const std::vector<double>& got, const std::vector<double>& want, double floor = 1e-6) {
  double size = 0;
  for (const double x : want) size += std::isfinite(x) ? x * x : 0;
  const double rms = std::sqrt(size / static_cast<double>(std::max<std::size_t>(want.size(), 1)));
  return error(got, want) * std::min(1.0, rms / floor);
}

bool within(const Errors& e, DType io) {
  const double o = io == DType::bf16 ? 6e-3 : 1e-3, grad = io == DType::bf16 ? 1.5e-2 : 3e-3;
  return e.o <= o && e.lse <= 1e-4 && e.dq <= grad && e.dk <= grad && e.dv <= grad && e.d_sink <= grad;
}

int run_cases(Backend backend, std::size_t count, std::uint64_t seed) {
  std::vector<Draw> draws = contract_draws();
  if (draws.size() > count) draws.resize(count);
  for (std::uint64_t i = 0; draws.size() < count; ++i) draws.push_back(random_draw(seed + i));
  const std::vector<Expected> expected = expect_all(draws);
  device::CallStream stream(0);
  const std::unique_ptr<kernels::Memory> memory = kernels::make_cuda_memory(stream);
  const kernels::KernelFactory& factory = kernels::factory_of(backend);
  const auto atomic = factory.make(*memory, false), fixed = factory.make(*memory, true);
  int wrong = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    DeviceProblem problem(draw, *expected[i].inputs, *memory);
    const Results got = problem.run(draw.deterministic ? *fixed : *atomic), &want = expected[i].results;
    // A sum of so many terms of either sign, which may all but cancel.
    const double sink_floor = 0.1 * std::sqrt(static_cast<double>(draw.problem.batch * draw.problem.q_rows));
    const Errors e{relative_error(got.o, want.o),   relative_error(got.lse, want.lse),
                   relative_error(got.dq, want.dq), relative_error(got.dk, want.dk),
                   relative_error(got.dv, want.dv), relative_error(got.d_sink, want.d_sink, sink_floor)};
    const std::string rows = row_faults(got, expected[i].rows, draw.io);
    bool good = within(e, draw.io) && rows.empty();
    if (draw.deterministic) good = good && problem.repeats(*fixed, got);
    wrong += good ? 0 : 1;
    std::printf("%-4s %s: o %.1e lse %.1e dq %.1e dk %.1e dv %.1e sink %.1e %s\n", good ? "ok" : "BAD",
                draw.text().c_str(), e.o, e.lse, e.dq, e.dk, e.dv, e.d_sink, rows.c_str());
    std::fflush(stdout);
  }
  std::printf("%zu cases, %d wrong\n", draws.size(), wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace usp::test

int main(int argc, char** argv) try {
  std::vector<std::string> args(argv + 1, argv + argc);
  usp::Backend backend = usp::Backend::mma;
  if (args.size() > 1 && args[0] == "--backend") {
    backend = usp::parse_word<usp::Backend>(args[1], args[0]);
    args.erase(args.begin(), args.begin() + 2);
  }
  if (!args.empty() && args[0] == "--bench")
    return usp::test::run_bench(backend, args.size() > 1 ? args[1] : "",
                                args.size() > 2 ? std::strtod(args[2].c_str(), nullptr) : 0);
  return usp::test::run_cases(backend, args.empty() ? 200 : std::strtoul(args[0].c_str(), nullptr, 10),
                              args.size() > 1 ? std::strtoul(args[1].c_str(), nullptr, 10) : 1);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
