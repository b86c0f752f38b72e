// SPDX-License-Identifier: Apache-2.0
#include "explain_view.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/schedule/effort.hpp"
#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/kernel_scratch.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

std::string name_of(BufferName name) {
  return fmt::format("{} {}", word_of(name.tensor), word_of(name.place));
}

class Viewer {
 public:
  Viewer(const schedule::RankSchedule& schedule, const schedule::CompactPass& compact, i64 batch)
      : s_(schedule), compact_(compact), batch_(batch) {}

  [[nodiscard]] std::vector<TickView> ticks() const {
    std::vector<TickView> list(s_.ticks.size());
    for (const schedule::Buffer& buffer : s_.buffers)
      if (buffer.first >= 0) list[at(buffer.first)].binds.push_back(bind(buffer));
    for (std::size_t t = 0; t < s_.ticks.size(); ++t) {
      const schedule::Tick& tick = s_.ticks[t];
      TickView& view = list[t];
      for (int i = 0; i < tick.posts.count; ++i) add(s_.transfers[at(tick.posts.begin + i)], view.posts);
      for (int i = 0; i < tick.steps.count; ++i)
        view.steps.push_back(step(s_.steps[at(tick.steps.begin + i)]));
      for (int i = 0; i < tick.arrivals.count; ++i)
        add(s_.transfers[at(s_.arrivals[at(tick.arrivals.begin + i)])], view.arrivals);
    }
    return list;
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  [[nodiscard]] BindView bind(const schedule::Buffer& b) const {
    return {name_of(b.name),
            b.fill == schedule::Fill::zero ? "zero" : "",
            b.rows,
            b.heads.size(),
            b.width,
            schedule::bytes_of(b, batch_),
            b.first,
            b.last,
            b.internal(static_cast<int>(s_.ticks.size()))};
  }

  void add(const schedule::Transfer& transfer, std::vector<MessageView>& out) const {
    const schedule::TransferOp& move = compact_.transfers[at(transfer.move)];
    MessageView view;
    view.move = word_of(move.name);
    view.what = word_of(move.from[0].tensor);
    if (move.pairs > 1) view.what += fmt::format(" {}", word_of(move.from[1].tensor));
    view.send = transfer.send;
    view.add = transfer.write_mode == WriteMode::accumulate;
    view.early = transfer.early;
    view.wire = transfer.wire;
    view.start = transfer.start;
    view.due = transfer.due;
    const auto same = std::find_if(out.begin(), out.end(), [&](const MessageView& v) {
      return v.move == view.move && v.what == view.what && v.send == view.send && v.start == view.start &&
             v.due == view.due;
    });
    MessageView& entry = same != out.end() ? *same : out.emplace_back(std::move(view));
    if (transfer.bytes > 0) entry.peers.push_back(transfer.peer);  // the own part never flies
    entry.bytes += transfer.bytes;
  }

  [[nodiscard]] StepView step(const schedule::Step& step) const {
    StepView view;
    view.kind = step.operation->word;
    view.query_heads = step.query_heads;
    if (!step.operation->has_pairs) return view;
    view.kv_heads = step.kv_heads;
    view.joined = step.joined;
    for (int i = 0; i < step.gates.count; ++i) {
      const schedule::Transfer& gate = s_.transfers[at(s_.gates[at(step.gates.begin + i)])];
      if (gate.peer != s_.rank) view.awaits.push_back(gate.peer);
    }
    view.slices = static_cast<std::size_t>(step.slices.count);
    view.backend = step.backend;
    if (step.backend.use == s_.backend.of(s_.pass) && step.backend.left > 0)
      view.left_to = fallback_of(s_.backend, s_.pass);
    view.reason = schedule::reason_of(s_.backend, step.backend, s_.pass, s_.slices.data() + step.slices.begin,
                                      step.slices.count);
    for (int i = 0; i < step.slices.count; ++i) {
      const schedule::Slice& slice = s_.slices[at(step.slices.begin + i)];
      view.pairs += schedule::area(slice);
      view.q_rows += slice.q_count;
      view.k_rows += slice.k_count;
    }
    return view;
  }

  const schedule::RankSchedule& s_;
  const schedule::CompactPass& compact_;
  i64 batch_;
};

std::vector<RankView> rank_views(const PlanFile& plan, const schedule::TokenMap& geometry) {
  std::vector<RankView> ranks;
  const SequenceLayout& layout = geometry.layout(schedule::Side::q);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    RankView view;
    view.rank = rank;
    view.ring = plan.mesh.ring_of(rank);
    view.ulysses = plan.mesh.ulysses_of(rank);
    const Range home = layout.home(view.ring, view.ulysses);
    view.tokens = home.size();
    view.runs = layout.tokens_of(view.ring, home);
    view.query_heads = geometry.heads().query_of(view.ulysses);
    view.kv_heads = geometry.heads().kv_of(view.ulysses);
    for (int group = 0; group < plan.placement.groups(); ++group)
      view.devices.push_back(plan.placement.device_of(plan.mesh, group, rank));
    ranks.push_back(std::move(view));
  }
  return ranks;
}

std::string method_words(const AttentionPlan& plan) {
  if (plan.mesh.ring() == 1)
    return "one ring row: the Ulysses exchange gives each rank some heads of the whole sequence; nothing "
           "else moves";
  return plan.method->summary(plan.mesh);
}

std::string layout_words(const AttentionPlan& a, int ring) {
  if (ring == 1) return "one ring row: every order of its tokens is balanced";
  const bool causal = a.band.diff_min >= 0;  // what evens out is the work of a causal mask
  const auto reason = [&](const char* text) { return std::string(causal ? text : ""); };
  switch (a.layout) {
    case LayoutKind::contiguous:
      return "contiguous: equal ranges in order" + reason("; under a causal mask the last row has most work");
    case LayoutKind::zigzag:
      return "zigzag: row r holds chunks r and 2R-1-r of 2R" +
             reason(", so that every row sees as many keys");
    case LayoutKind::striped:
      return "striped: row r holds every R-th token" +
             reason(", so that every block is nearly causal and even");
    case LayoutKind::balanced:
      return "balanced: chunks are dealt to rows by the causal area of their documents";
  }
  throw InternalError("a layout without words");
}

/// "block 0, blocks 1 to 2 and blocks 3 to 7".
std::string phases_words(int ring, int phases) {
  std::string text = "block 0";
  for (int phase = 1; phase < phases; ++phase) {
    const int begin = schedule::blocks_through_phase(ring, phases, phase - 1),
              last = schedule::blocks_through_phase(ring, phases, phase) - 1;
    text += phase + 1 < phases ? ", " : " and ";
    text += begin == last ? fmt::format("block {}", begin) : fmt::format("blocks {} to {}", begin, last);
  }
  return text;
}

/// What the runtime decides by, when a call is made.
std::string gated_words(const AttentionPlan& a, bool training) {
  const std::string_view name = word_of(a.backend);
  std::string text =
      a.gate_phases == 1
          ? "gated: one call attends the own block and then each remote one, in the order of the ring, as it "
            "lands"
          : fmt::format(
                "gated: forward {} calls, of {}, and backward one attend the own block and then each "
                "remote one, in the order of the ring, as it lands",
                a.gate_phases, phases_words(a.mesh.ring(), a.gate_phases));
  const bool forward = a.backend.of(Pass::forward)->waits_inside,
             backward = a.backend.of(Pass::backward)->waits_inside;
  if (forward && backward)
    text += fmt::format("; {} waits inside its launches", name);
  else if (forward)
    text +=
        fmt::format("; {} waits inside its launch forward, and backward launches a kernel per block", name);
  else
    text += fmt::format("; {} launches a kernel per block, each behind its arrival", name);
  if (a.backend->on_gpu && training)
    text += ". Over copy engines dK and dV of a block go home once it is complete, while the call goes on";
  if (a.backend->on_gpu)
    text +=
        ". Transfers by NCCL, ranks that share a GPU, and CUDA graphs have no gates: there the call runs "
        "behind "
        "the arrival of all its blocks";
  return text;
}

std::vector<std::string> why(const PlanFile& plan, const PlanLayer& layer,
                             const schedule::TokenMap& geometry) {
  const AttentionPlan& a = layer.plan;
  const AttentionShape& shape = a.shape;
  std::vector<std::string> lines{method_words(a), layout_words(a, plan.mesh.ring())};
  const int u = plan.mesh.ulysses;
  if (u > 1) {
    std::string heads =
        fmt::format("ulysses {}: {}/{} heads over {}, {} each", u, shape.query_heads, shape.kv_heads,
                    counted(u, "rank"), counted(geometry.heads().query_of(0).size(), "query head"));
    if (!geometry.heads().even())
      heads += fmt::format(" at most (uneven: the last has {})", geometry.heads().query_of(u - 1).size());
    if (geometry.heads().shared_kv())
      heads +=
          "; a KV head is sent to each rank that attends it, never repeated before the exchange, and its "
          "gradient is summed over them in a fixed order";
    lines.push_back(heads);
  }
  if (a.head_chunks > 1)
    lines.push_back(fmt::format(
        "{} head chunks: the exchange of one chunk hides behind the attention of another", a.head_chunks));
  if (a.prune) lines.emplace_back("pruned: only keys that some query of the receiver can see are sent");
  if (a.score.block_tokens > 0) lines.push_back(block_pattern_note(a.score));
  if (plan.training && plan.mesh.ring() > 1 && !a.method->joins_remote_blocks)
    lines.emplace_back(
        a.dkv_return == DkvReturn::direct || !a.method->partials_travel
            ? "dK and dV of a block go straight home after each unit; the owner adds them in order"
            : "dK and dV ride on with their block, one hop behind it, and then go home");
  if (a.gated) lines.push_back(gated_words(a, plan.training));
  if (plan.training && a.split_own_block)
    lines.emplace_back(
        "the own block is attended in two halves of its heads backward, the second while the last dK and dV "
        "go home");
  return lines;
}

/// Refuses one rank's schedule where it is too long to be made.
void check_expansion(const AttentionPlan& plan, const Documents& documents) {
  std::string reason = too_much_work(effort_of(plan, documents.count(), 0), plan);
  if (reason.empty()) reason = too_much_to_expand(expansion_effort(plan, documents.count(), 1), plan);
  if (!reason.empty())
    throw Infeasible("--rank: " + reason, {"leave out --rank and --pass: tokens and reasons need no schedule",
                                           "plan with a smaller ring, or with fewer head chunks"});
}

}  // namespace

ExplainView explain_view(const PlanFile& plan, const ExplainRequest& request) {
  const PlanLayer& layer = layer_at(plan, request.layer);
  if (request.rank && (*request.rank < 0 || *request.rank >= plan.mesh.size()))
    throw UsageError(fmt::format("--rank: ranks of a group are 0 to {}", plan.mesh.size() - 1));
  if (request.pass == Pass::backward && !plan.training)
    throw UsageError("--pass backward: the plan is for the forward pass only");
  const std::vector<i64> lengths = request.documents.value_or(plan.documents);
  if (request.documents) {
    check_other_batch(plan, layer, lengths);
    check_documents(lengths, plan.capacity_tokens);
  }
  const Documents documents = layer_documents(layer, lengths);
  if (request.rank) check_expansion(layer.plan, documents);
  const schedule::TokenMap geometry(layer.plan, documents);
  ExplainView view;
  view.ranks = rank_views(plan, geometry);
  view.why = why(plan, layer, geometry);
  if (!request.documents)
    view.why.push_back(
        "backend " + schedule::backends_text(layer.plan.backend, layer.forward.steps, layer.backward.steps));
  if (!request.rank) return view;
  schedule::CompactSchedule compact;
  schedule::generate(layer.plan, geometry.heads().shared_kv(), compact);
  const schedule::RankSchedule schedule = schedule::expand(geometry, compact, *request.rank, request.pass);
  view.has_schedule = true;
  view.ticks = Viewer(schedule, compact.of(request.pass), layer.plan.shape.batch).ticks();
  view.workspace_bytes = schedule::pack_workspace(schedule, layer.plan.shape.batch).bytes;
  view.kernel_scratch_bytes = schedule::kernel_scratch_bytes(layer.plan, {&schedule});
  for (const schedule::Transfer& transfer : schedule.transfers)
    (transfer.send ? view.sent_bytes : view.received_bytes) += transfer.bytes;
  return view;
}

}  // namespace usp
