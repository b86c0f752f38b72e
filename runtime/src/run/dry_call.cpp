// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/comm/dry_run.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/runtime/prepared.hpp"
#include "usp/schedule/effort.hpp"
#include "usp/schedule/validate.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

namespace usp {
namespace {

/// What a transfer weighs by the regions that it fills or empties.
i64 bytes_of_regions(const schedule::RankSchedule& schedule, const schedule::Transfer& t, i64 batch) {
  i64 sum = 0;
  for (std::int32_t i = t.regions.begin; i < t.regions.begin + t.regions.count; ++i) {
    const schedule::BufferRegion& region = schedule.regions[static_cast<std::size_t>(i)];
    const schedule::Buffer& buffer = schedule.buffers[static_cast<std::size_t>(region.buffer)];
    sum += region.rows.size() * region.heads.size() * buffer.width * batch *
           bytes_of(t.stage >= 0 ? t.wire : buffer.type);
  }
  return sum;
}

/// One rank's pass, without memory.
class DryPass {
 public:
  DryPass(const schedule::RankSchedule& schedule, i64 batch, comm::Communicator& communicator)
      : schedule_(schedule),
        batch_(batch),
        communicator_(communicator),
        state_(schedule.transfers.size(), State::waits) {}

  /// Returns the bytes that were sent, and received.
  std::array<i64, 2> run() {
    const std::vector<std::size_t> sends = sends_by_due();
    auto sent = sends.begin();
    for (std::size_t tick = 0; tick < schedule_.ticks.size(); ++tick) {
      const schedule::Tick& t = schedule_.ticks[tick];
      for (std::int32_t i = t.posts.begin; i < t.posts.begin + t.posts.count; ++i)
        post(static_cast<std::size_t>(i), static_cast<std::int32_t>(tick));
      for (std::int32_t i = t.steps.begin; i < t.steps.begin + t.steps.count; ++i)
        open_gates(schedule_.steps[static_cast<std::size_t>(i)].gates);
      for (std::int32_t i = t.arrivals.begin; i < t.arrivals.begin + t.arrivals.count; ++i)
        complete(static_cast<std::size_t>(schedule_.arrivals[static_cast<std::size_t>(i)]));
      for (; sent != sends.end() && due(*sent) == static_cast<std::int32_t>(tick); ++sent) complete(*sent);
    }
    for (const State state : state_) expects(state == State::complete, "a transfer that no rank waits for");
    return moved_;
  }

 private:
  enum class State : std::uint8_t { waits, posted, complete };

  [[nodiscard]] std::int32_t due(std::size_t transfer) const { return schedule_.transfers[transfer].due; }
  [[nodiscard]] std::vector<std::size_t> sends_by_due() const {
    std::vector<std::size_t> sends;
    for (std::size_t i = 0; i < schedule_.transfers.size(); ++i)
      if (schedule_.transfers[i].send) sends.push_back(i);
    std::stable_sort(sends.begin(), sends.end(),
                     [&](std::size_t a, std::size_t b) { return due(a) < due(b); });
    return sends;
  }

  void post(std::size_t i, std::int32_t tick) {
    const schedule::Transfer& t = schedule_.transfers[i];
    expects(state_[i] == State::waits && t.start == tick, "a transfer that starts twice or in another tick");
    state_[i] = State::posted;
    if (t.peer == schedule_.rank) return;
    const comm::StridedBytes region{.run_bytes = bytes_of_regions(schedule_, t, batch_)};
    expects(region.run_bytes == t.bytes, "a transfer whose regions weigh other bytes than it states");
    const comm::Message message{
        .peer = t.peer,
        .send = t.send,
        .tag = t.move,
        .tick = tick,
        .operation = schedule_.pass == Pass::forward ? "a forward exchange" : "a backward exchange",
        .regions = &region,
        .region_count = 1};
    comm::Ticket ticket = 0;
    communicator_.post(&message, 1, &ticket);
    moved_[t.send ? 0 : 1] += communicator_.wait(ticket);
  }

  void open_gates(schedule::ListRef gates) {
    for (std::int32_t i = gates.begin; i < gates.begin + gates.count; ++i)
      complete(static_cast<std::size_t>(schedule_.gates[static_cast<std::size_t>(i)]));
  }

  void complete(std::size_t i) {
    expects(state_[i] == State::posted, "a transfer that is waited for before it starts, or twice");
    state_[i] = State::complete;
  }

  const schedule::RankSchedule& schedule_;
  i64 batch_;
  comm::Communicator& communicator_;
  std::vector<State> state_;
  std::array<i64, 2> moved_{};
};

void check_work(const AttentionPlan& plan, const Documents& documents) {
  std::string reason = too_much_work(effort_of(plan, documents.count(), 0), plan);
  if (reason.empty())
    reason = too_much_to_expand(expansion_effort(plan, documents.count(), plan.mesh.size()), plan);
  if (!reason.empty())
    throw Infeasible("a dry run plays every rank, which is too much work here: " + reason,
                     {"plan with a smaller ring or Ulysses degree, or with fewer head chunks",
                      "usp explain PLAN --rank R shows the schedule of one rank"});
}

}  // namespace

RunResult dry_run_call(const AttentionPlan& plan, const Documents& documents, bool training,
                       WorkProgress* progress) {
  check_attention_plan(plan);
  check_work(plan, documents);
  const int ranks = plan.mesh.size();
  RunResult report;
  report.kernel = "none";
  report.training = training;
  report.ranks.resize(static_cast<std::size_t>(ranks));
  const auto geometry = std::make_shared<const schedule::TokenMap>(plan, documents);
  const schedule::CompactSchedule compact = schedule_of(*geometry);
  comm::DryRun passes[] = {comm::DryRun(ranks), comm::DryRun(ranks)};
  for (int rank = 0; rank < ranks; ++rank) {
    const Prepared prepared(geometry, compact, rank);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !training) continue;
      const int index = pass == Pass::forward ? 0 : 1;
      const schedule::RankSchedule& schedule = prepared.schedule(pass);
      comm::Communicator& communicator = passes[index].rank(rank);
      // A transfer that weighs other bytes than planned has thrown.
      const std::array<i64, 2> moved = DryPass(schedule, plan.shape.batch, communicator).run();
      PassRecord& record = report.ranks[static_cast<std::size_t>(rank)].record[index];
      record.pass = pass;
      record.transfers = summed_transfers(schedule);
      for (std::size_t i = 0; i < moved.size(); ++i) record.transfers[i].executed_bytes = moved[i];
      record.workspace_bytes = prepared.workspace_bytes(pass);
      report.communicator = communicator.name();
    }
    tell(progress, rank + 1, ranks, "ranks");
  }
  for (const comm::DryRun& pass : passes) pass.check();
  return report;
}

}  // namespace usp
