// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, started by mpirun or torchrun, over copy engines or NCCL:
//   gpu_ranks 1 devices
//     prints how many GPUs there are
//   gpu_ranks RANKS contract
//   gpu_ranks RANKS graph RING ULYSSES [gated]
//     captured once, replayed 1,000 times (gated: 50), bits equal; gated calls run behind waits in a graph
//   gpu_ranks RANKS killed|late TRANSPORT eager|replay|gated
//     the last rank dies, or never calls again; the others end by the watchdog
// Exits with 0, with 5 and a named error where a peer was lost, with 77 where there is no GPU.
#include "device_payloads.hpp"
#include "gpu_rank.hpp"
#include "graph_step.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/nccl.hpp"
#include "usp/comm/ranks.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace usp::test {
namespace {

constexpr int replays = 1000;

void require(bool holds, const std::string& what) {
  if (!holds) throw VerificationError(what);
}

void contract_of(comm::Communicator& control) {
  GpuRank rank(control);
  DevicePayloads payloads(*rank.data_plane, *rank.memory);
  contract::check_data_plane(*rank.data_plane, payloads);
}

/// By the backend that waits inside its launch, where it runs.
[[nodiscard]] AttentionPlan gated_plan(int ring, int ulysses) {
  const bool waits_inside = device::device_info(0).compute_major == 9;
  AttentionPlan plan = plan_of(waits_inside ? Backend::hopper : Backend::mma, ring, ulysses);
  plan.method = Method::all_gather_kv;
  plan.gated = true;
  return plan;
}

/// A rank with a step that has run once.
struct WarmRank {
  WarmRank(comm::Communicator& control, const AttentionPlan& plan,
           const std::string& transport = "copy_engine")
      : gpu(control, {.gates_on_shared_gpus = plan.gated}),
        kernel(make_repeatable(plan.backend, *gpu.memory)),
        nccl(transport == "nccl"
                 ? comm::make_message_data_plane(comm::make_nccl_communicator(control, gpu.stream), control)
                 : nullptr),
        data_plane(nccl ? *nccl : *gpu.data_plane),
        attention(plan, data_plane, *kernel) {
    attention.set_batch(Documents::single(tokens, tokens));
    step.emplace(gpu.stream, attention, static_cast<i64>(attention.q_tokens().size()));
    step->randomize(static_cast<unsigned>(10 * control.rank()));
    step->run();
    gpu.stream.synchronize();
    data_plane.check();
  }
  GpuRank gpu;
  std::unique_ptr<kernels::AttentionKernel> kernel;
  std::unique_ptr<comm::DataPlane> nccl;
  comm::DataPlane& data_plane;
  AttentionOperator attention;
  std::optional<Step> step;
};

/// Of this rank, while its GPU has work: enqueueing alone.
[[nodiscard]] double host_seconds_per_tick(WarmRank& rank) {
  double seconds = 0;
  std::size_t ticks = 0;
  for (int call = 0; call < 20; ++call) {
    rank.step->run();
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const PassRecord& record = rank.attention.record(pass);
      seconds += record.ticks.back().end_s;
      ticks += record.ticks.size();
    }
  }
  rank.gpu.stream.synchronize();
  return seconds / static_cast<double>(ticks);
}

void graph_of(comm::Communicator& control, int ring, int ulysses, bool gated) {
  WarmRank rank(control, gated ? gated_plan(ring, ulysses) : plan_of(Backend::mma, ring, ulysses));
  const Graph graph(rank.gpu.stream, [&] { rank.step->run(); });
  rank.step->randomize(static_cast<unsigned>(100 + 10 * control.rank()));  // a replay reads what is there now
  rank.step->run();
  const auto expected = rank.step->results();
  rank.step->clear();
  rank.gpu.stream.synchronize();
  control.barrier();
  // Processes that share a GPU take turns on it, and a call that waits uses up its turn.
  const int repeats = gated ? replays / 20 : replays;
  const auto begin = std::chrono::steady_clock::now();
  for (int replay = 0; replay < repeats; ++replay) graph.replay(rank.gpu.stream);
  rank.gpu.stream.synchronize();
  const std::chrono::duration<double> replayed = std::chrono::steady_clock::now() - begin;
  require(rank.step->results() == expected, "replays give other bits than the call");
  const auto eager = std::chrono::steady_clock::now();
  for (int call = 0; call < repeats; ++call) rank.step->run();
  rank.gpu.stream.synchronize();
  const std::chrono::duration<double> called = std::chrono::steady_clock::now() - eager;
  require(rank.step->results() == expected, "calls after replays give other bits");
  rank.data_plane.check();
  const double host_s = host_seconds_per_tick(rank);
  if (control.rank() == 0)
    std::printf("%d x %d: %d steps eager %.3f s, by a graph %.3f s; host %.1f us per tick\n", ring, ulysses,
                repeats, called.count(), replayed.count(), 1e6 * host_s);
  control.barrier();
}

/// Does not come back.
void leave(bool killed) {
  if (killed) std::raise(SIGKILL);
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// Steps without end, until a lost peer ends them.
void lose_of(comm::Communicator& control, bool killed, const std::string& transport, const std::string& how) {
  const bool replay = how == "replay", gated = how == "gated";
  WarmRank rank(control, gated ? gated_plan(control.size(), 1) : plan_of(Backend::mma, control.size(), 1),
                transport);
  if (gated)
    require(rank.attention.record(Pass::forward).gated_calls == 1, "the call did not wait at a gate");
  std::optional<Graph> graph;
  if (replay) graph.emplace(rank.gpu.stream, [&] { rank.step->run(); });
  const bool victim = control.rank() == control.size() - 1;
  for (int call = 0;; ++call) {
    if (victim && call == 20) leave(killed);
    if (replay)
      graph->replay(rank.gpu.stream);
    else
      rank.step->run();
    if (call % 5 == 4) {
      rank.gpu.stream.synchronize();
      rank.data_plane.check();
    }
  }
}

void play(comm::Communicator& control, const std::vector<std::string>& scenario) {
  if (scenario[0] == "contract") return contract_of(control);
  if (scenario[0] == "graph")
    return graph_of(control, std::stoi(scenario.at(1)), std::stoi(scenario.at(2)),
                    scenario.size() > 3 && scenario[3] == "gated");
  if (scenario[0] == "killed" || scenario[0] == "late")
    return lose_of(control, scenario[0] == "killed", scenario.at(1), scenario.at(2));
  throw UsageError("no scenario '" + scenario[0] + "'");
}

}  // namespace
}  // namespace usp::test

int main(int argc, char** argv) try {
  if (argc < 3) throw usp::UsageError("gpu_ranks RANKS SCENARIO ...");
  if (usp::device::device_count() == 0) return 77;
  const std::vector<std::string> scenario(argv + 2, argv + argc);
  if (scenario[0] == "devices") {
    std::printf("%d\n", usp::device::device_count());
    return 0;
  }
  usp::comm::CommOptions options;
  options.watchdog_s = 5;
  options.start_s = 60;
  usp::comm::run_ranks(std::stoi(argv[1]), options,
                       [&](usp::comm::Communicator& control) { usp::test::play(control, scenario); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
