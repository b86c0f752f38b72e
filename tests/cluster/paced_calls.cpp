// SPDX-License-Identifier: Apache-2.0
// paced_calls REQUEST [REPEAT [SWEEPS]]: makes the call of an attention request (usp.attention_request) by
// every plan that the planner has for it, over the real runtime and transports, with kernels that take their
// calibrated time. As many ranks as devices, started by mpirun or with torchrun's variables, in order of
// device. After one sweep over all plans, each once, SWEEPS more follow over those that may be the fastest,
// the planner's choice and the first of each mesh. Rank 0 prints one JSON object: the plans, the planner's
// choice first, each with its predicted times, its median times by sweep (of the slowest rank; REPEAT
// rounds), and its bytes.
#include "median.hpp"
#include "paced_kernel.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/runtime/host_tensor.hpp"
#include "usp/schedule/words.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace usp::test {
namespace {

constexpr std::size_t passes = 2;  ///< forward, backward

/// Plans so far behind the fastest of the first sweep are not measured again: noise is less.
constexpr double finalist_slowdown = 0.1;

struct Sampling {
  int repeat = 3, sweeps = 2;
};

/// What one plan took, the same on all ranks: per pass the medians of the sweeps, and bytes that all ranks
/// sent.
struct Measured {
  std::array<std::vector<double>, passes> seconds;
  std::array<i64, passes> planned_bytes{}, executed_bytes{};

  [[nodiscard]] double first_s() const { return seconds[0].front() + seconds[1].front(); }
};

/// The ranks of a job in the order of a mesh, whose rank p is placed on a device: that of the same number.
class OrderedRanks {
 public:
  explicit OrderedRanks(comm::Communicator& world) : world_(world) {}

  [[nodiscard]] comm::Communicator& of(const Mesh& mesh, const Placement& placement) {
    std::vector<int> ranks;
    for (int p = 0; p < mesh.size(); ++p) ranks.push_back(placement.device_of(mesh, 0, p));
    if (std::is_sorted(ranks.begin(), ranks.end())) return world_;
    const auto [at, fresh] = groups_.try_emplace(ranks);
    if (fresh) at->second = world_.group(ranks);
    return *at->second;
  }

 private:
  comm::Communicator& world_;
  std::map<std::vector<int>, std::unique_ptr<comm::Communicator>> groups_;
};

/// One rank of a call, with tensors that hold nothing.
class PacedCall {
 public:
  PacedCall(const AttentionRequest& request, const AttentionPlan& plan, comm::Communicator& ranks)
      : training_(request.training),
        ranks_(ranks),
        kernel_(*request.calibration, plan, request.execution),
        operator_(plan, ranks, kernel_, {.forward_only = !request.training}) {
    operator_.set_batch(request.documents);
    const AttentionShape& s = plan.shape;
    const auto rows = static_cast<i64>(operator_.q_tokens().size()),
               keys = static_cast<i64>(operator_.kv_tokens().size());
    const Range queries{0, s.query_heads}, kv{0, s.kv_heads};
    for (HostTensor* t : {&q_, &dq_}) *t = HostTensor(s.dtype, s.batch, rows, queries, s.head_dim_qk);
    for (HostTensor* t : {&out_, &d_out_}) *t = HostTensor(s.dtype, s.batch, rows, queries, s.head_dim_v);
    for (HostTensor* t : {&k_, &dk_}) *t = HostTensor(s.dtype, s.batch, keys, kv, s.head_dim_qk);
    for (HostTensor* t : {&v_, &dv_}) *t = HostTensor(s.dtype, s.batch, keys, kv, s.head_dim_v);
    inputs_.q = q_.view(), inputs_.k = k_.view(), inputs_.v = v_.view();
  }

  /// Seconds of both passes on the slowest rank.
  [[nodiscard]] std::array<double, passes> round() {
    std::array<double, passes> seconds{};
    seconds[0] = slowest([&] { operator_.forward(inputs_, out_.view()); });
    if (training_)
      seconds[1] = slowest([&] {
        operator_.backward(inputs_, d_out_.view(), {dq_.view(), dk_.view(), dv_.view()});
      });
    return seconds;
  }

  /// Of all ranks. Throws where a transfer moved other bytes than planned.
  void count_bytes(Measured& measured) const {
    for (std::size_t pass = 0; pass < (training_ ? passes : 1); ++pass) {
      const PassRecord& record = operator_.record(pass == 0 ? Pass::forward : Pass::backward);
      if (const std::string fault = difference(record.transfers); !fault.empty())
        throw VerificationError(fault);
      std::array<i64, 2> sums{record.planned_bytes(true), record.executed_bytes(true)};
      ranks_.all_reduce_sum(sums.data(), 2);
      measured.planned_bytes[pass] = sums[0], measured.executed_bytes[pass] = sums[1];
    }
  }

 private:
  template <class Call>
  [[nodiscard]] double slowest(const Call& call) const {
    using Clock = std::chrono::steady_clock;
    ranks_.barrier();
    const Clock::time_point begin = Clock::now();
    call();
    const double mine = std::chrono::duration<double>(Clock::now() - begin).count();
    std::vector<double> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(&mine, all.data(), sizeof mine);
    return *std::max_element(all.begin(), all.end());
  }

  bool training_;
  comm::Communicator& ranks_;
  PacedKernel kernel_;
  AttentionOperator operator_;
  HostTensor q_, k_, v_, out_, d_out_, dq_, dk_, dv_;
  AttentionInputs inputs_;
};

void measure(const AttentionRequest& request, const AttentionPlan& plan, comm::Communicator& ranks,
             int repeat, Measured& measured) {
  PacedCall call(request, plan, ranks);
  (void)call.round();  // warms up
  std::array<std::vector<double>, passes> seconds;
  for (int i = 0; i < repeat; ++i) {
    const std::array<double, passes> both = call.round();
    for (std::size_t pass = 0; pass < passes; ++pass) seconds[pass].push_back(both[pass]);
  }
  for (std::size_t pass = 0; pass < passes; ++pass)
    measured.seconds[pass].push_back(bench::median(seconds[pass]));
  call.count_bytes(measured);
}

[[nodiscard]] Json pass_json(const PassPrice& price, const Measured& measured, std::size_t pass) {
  return {{"predicted_s", price.seconds},
          {"compute_s", price.compute_s},
          {"measured_s", measured.seconds[pass]},
          {"planned_bytes", measured.planned_bytes[pass]},
          {"executed_bytes", measured.executed_bytes[pass]}};
}

[[nodiscard]] Json plan_json(const AttentionCandidate& c, const Measured& measured, bool training) {
  return {{"description", describe(c)},
          {"mesh", {{"ring", c.plan.mesh.ring()}, {"ulysses", c.plan.mesh.ulysses}}},
          {"method", word_of(c.plan.method)},
          {"layout", word_of(c.plan.layout)},
          {"dkv_return", word_of(c.plan.dkv_return)},
          {"head_chunks", c.plan.head_chunks},
          {"order", word_of(c.placement.order)},
          {"forward", pass_json(c.price.forward, measured, 0)},
          {"backward", training ? pass_json(c.price.backward, measured, 1) : Json(nullptr)}};
}

/// All plans, without those that differ in the backward pass alone where there is none.
[[nodiscard]] std::vector<AttentionCandidate> plans_of(const AttentionRequest& request) {
  std::vector<AttentionCandidate> plans = plan_attention(request).candidates;
  if (!request.training)
    std::erase_if(plans,
                  [](const AttentionCandidate& c) { return c.plan.dkv_return != DkvReturn::circulate; });
  return plans;
}

[[nodiscard]] std::vector<bool> finalists(const std::vector<AttentionCandidate>& plans,
                                          const std::vector<Measured>& measured) {
  double fastest = measured.front().first_s();
  for (const Measured& m : measured) fastest = std::min(fastest, m.first_s());
  std::set<std::pair<int, int>> meshes;
  std::vector<bool> chosen;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Mesh& mesh = plans[i].plan.mesh;
    const bool first_of_mesh = meshes.emplace(mesh.ring(), mesh.ulysses).second;
    chosen.push_back(first_of_mesh || measured[i].first_s() <= fastest * (1 + finalist_slowdown));
  }
  return chosen;
}

/// Collective.
[[nodiscard]] std::vector<Measured> measure_all(const AttentionRequest& request,
                                                const std::vector<AttentionCandidate>& plans,
                                                comm::Communicator& world, const Sampling& sampling) {
  std::vector<Measured> measured(plans.size());
  std::vector<bool> chosen(plans.size(), true);
  OrderedRanks ordered(world);
  for (int sweep = 0; sweep <= sampling.sweeps; ++sweep) {
    if (sweep == 1) chosen = finalists(plans, measured);
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (chosen[i])
        measure(request, plans[i].plan, ordered.of(plans[i].plan.mesh, plans[i].placement),
                sweep == 0 ? 1 : sampling.repeat, measured[i]);
  }
  return measured;
}

void run(const std::string& file, const Sampling& sampling) {
  const std::unique_ptr<AttentionInput> input =
      read_attention_request(read_file(file), file, [](const std::string&) {});
  AttentionRequest& request = input->request;
  request.max_candidates = 100000;
  const std::vector<AttentionCandidate> plans = plans_of(request);
  const auto ranks = static_cast<int>(input->cluster.devices.size());
  std::vector<Measured> measured;
  const bool here = comm::run_ranks(ranks, {}, [&](comm::Communicator& world) {
    std::vector<Measured> mine = measure_all(request, plans, world, sampling);
    if (world.rank() == 0) measured = std::move(mine);
  });
  if (!here) return;
  Json json = Json::array();
  for (std::size_t i = 0; i < plans.size(); ++i)
    json.push_back(plan_json(plans[i], measured[i], request.training));
  std::puts(Json{{"ranks", ranks}, {"plans", json}}.dump(1).c_str());
}

}  // namespace
}  // namespace usp::test

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw usp::UsageError("usage: paced_calls REQUEST [REPEAT [SWEEPS]]");
    usp::test::Sampling sampling;
    if (argc > 2) sampling.repeat = std::max(1, std::atoi(argv[2]));
    if (argc > 3) sampling.sweeps = std::max(1, std::atoi(argv[3]));
    usp::test::run(argv[1], sampling);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
