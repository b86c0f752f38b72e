// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/price_report.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace usp {
namespace {

TransferBytes summed(std::string name, const Ledger& ledger) {
  TransferBytes bytes;
  bytes.name = std::move(name);
  bytes.total = std::accumulate(ledger.sent.begin(), ledger.sent.end(), i64{0});
  bytes.sent_max = *std::max_element(ledger.sent.begin(), ledger.sent.end());
  bytes.received_max = *std::max_element(ledger.received.begin(), ledger.received.end());
  bytes.mean = static_cast<double>(bytes.total) / static_cast<double>(ledger.sent.size());
  return bytes;
}

/// Degrees that keep the number of ranks and can be used, nearest to the wanted one first.
std::string nearest_meshes(const AttentionPlan& plan, i64 devices) {
  const i64 wanted = std::min<i64>(i64{plan.mesh.ring()} * plan.mesh.ulysses, devices);
  std::vector<i64> degrees;
  for (i64 u = 1; u <= plan.shape.query_heads && u <= wanted; ++u)
    if (wanted % u == 0) degrees.push_back(u);
  std::sort(degrees.begin(), degrees.end(),
            [&](i64 a, i64 b) { return std::abs(a - plan.mesh.ulysses) < std::abs(b - plan.mesh.ulysses); });
  std::string text = "(ring, ulysses) = ";
  for (std::size_t i = 0; i < degrees.size() && i < 3; ++i)
    text += fmt::format("{}{}, {})", i == 0 ? "(" : ", (", wanted / degrees[i], degrees[i]);
  return text;
}

PassReport pass_report(const schedule::TokenMap& geometry, const schedule::CompactPass& pass,
                       const PassPrice& price, std::vector<TickPrice> ticks) {
  PassReport report;
  report.price = price;
  report.ticks = std::move(ticks);
  const std::vector<NamedLedger> by_name = ledgers(geometry, pass);
  for (const NamedLedger& part : by_name)
    report.transfers.push_back(summed(std::string(word_of(part.name)), part.bytes));
  report.all = summed("all", sum_of(geometry, by_name));
  return report;
}

}  // namespace

void check_call(const AttentionCall& call, const topology::Cluster& cluster) {
  const AttentionPlan& plan = call.plan;
  const AttentionShape& shape = plan.shape;
  const auto devices = static_cast<i64>(cluster.devices.size());
  const i64 ranks = i64{plan.mesh.ring()} * plan.mesh.ulysses;
  const std::string near = nearest_meshes(plan, devices);
  if (shape.query_heads % shape.kv_heads != 0)
    throw Infeasible(fmt::format("{} query heads do not form equal groups over {}", shape.query_heads,
                                 counted(shape.kv_heads, "KV head")),
                     {"a number of KV heads that divides the query heads"});
  if (plan.mesh.ulysses > shape.query_heads)
    throw Infeasible(fmt::format("ulysses {} exceeds the {}, so that some rank would hold none",
                                 plan.mesh.ulysses, counted(shape.query_heads, "query head")),
                     {near});
  if (ranks > devices)
    throw Infeasible(fmt::format("ring {} x ulysses {} needs {}, the cluster has {}", plan.mesh.ring(),
                                 plan.mesh.ulysses, counted(ranks, "device"), devices),
                     {near, "more hosts with --nodes"});
  if (ranks > shape.q_tokens)
    throw Infeasible(fmt::format("{} tokens are fewer than the {} ranks, so that some rank would hold none",
                                 shape.q_tokens, ranks),
                     {"a smaller mesh", "a longer sequence with --seq"});
  const i64 min_heads = shape.query_heads / plan.mesh.ulysses;
  if (plan.head_chunks > min_heads)
    throw Infeasible(fmt::format("{} head chunks need as many query heads on every rank, there are {}",
                                 plan.head_chunks, min_heads),
                     {fmt::format("--head-chunks {} or fewer", min_heads)});
}

LayoutKind default_layout(const Mesh& mesh, Band band) {
  return mesh.ring() > 1 && band.diff_min == 0 ? LayoutKind::zigzag : LayoutKind::contiguous;
}

Backend fastest_backend(const topology::Cluster& cluster, const Calibration& calibration,
                        AttentionCall call) {
  LinkPricer links(cluster, calibration);
  AttentionPricer pricer(links, call.plan.shape, call.documents, call.execution);
  const CardBackends cards(cluster, calibration);
  Backend fastest;
  double least = std::numeric_limits<double>::infinity();
  for (const Backend backend : cards.measured()) {
    call.plan.backend = backend;
    call.plan.split_own_block = schedule::splits_own_block(call.plan);
    bool whole = cards.objection(call.plan, call.backward).empty() && too_many_gpu_rows(call.plan).empty();
    for (const Pass pass : {Pass::forward, Pass::backward})
      if (pass == Pass::forward || call.backward)
        whole = whole && pricer.computing_backend(call.plan, pass) == backend.of(pass);
    if (!whole) continue;
    const AttentionPrice price = pricer.price(call.plan, call.placement);
    const double seconds = price.forward.seconds + (call.backward ? price.backward.seconds : 0);
    if (seconds >= least) continue;
    least = seconds;
    fastest = backend;
  }
  return fastest;
}

std::string idle_devices_note(i64 used, i64 devices) {
  return fmt::format("the first {} of {} devices are used, the others idle", used, devices);
}

namespace {

/// FLOPs and their rates: 2 per visible pair, head and width of keys and of values; backward counts twice
/// those, what it computes again not.
void add_rates(const topology::Cluster& cluster, double pairs, PriceReport& report) {
  const AttentionShape& shape = report.call.plan.shape;
  const double ranks = report.call.plan.mesh.size();
  const double forward = 2 * pairs * static_cast<double>(shape.query_heads) *
                         static_cast<double>(shape.batch) * (shape.head_dim_qk + shape.head_dim_v);
  double flops = 0;
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    PassReport& pass = report.passes[i];
    pass.flops = forward * (i == 0 ? 1 : 2);
    pass.flop_s = pass.price.seconds > 0 ? pass.flops / pass.price.seconds / ranks : 0;
    flops += pass.flops;
  }
  report.flop_s = report.seconds > 0 ? flops / report.seconds / ranks : 0;
  const topology::DeviceSpec& spec = cluster.specs.front();
  const topology::Quantity& peak = shape.dtype == DType::bf16   ? spec.bf16_tflops
                                   : shape.dtype == DType::fp16 ? spec.fp16_tflops
                                                                : spec.fp32_tflops;
  if (peak.known() && *peak.value > 0) report.mfu = report.flop_s / (*peak.value * 1e12);
}

/// What computes a pass that the plan's backend leaves.
void add_backend_notes(const Calibration& calibration, const AttentionPlan& plan,
                       const std::vector<Backend>& computing, std::vector<std::string>& notes) {
  for (std::size_t i = 0; i < computing.size(); ++i)
    if (const Pass pass = i == 0 ? Pass::forward : Pass::backward; computing[i] != plan.backend.of(pass))
      notes.push_back(fmt::format("backend {}: {} is left to {}, and priced so", word_of(plan.backend),
                                  word_of(pass), word_of(computing[i])));
  if (std::string note = unmeasured_kernels_note(calibration, plan, computing); !note.empty())
    notes.push_back(std::move(note));
}

}  // namespace

PriceReport price_call(const topology::Cluster& cluster, const Calibration& calibration,
                       const AttentionCall& call) {
  check_call(call, cluster);
  check_attention_plan(call.plan);
  const CardBackends cards(cluster, calibration);
  cards.check_runs(call.plan, call.backward);
  LinkPricer links(cluster, calibration);
  const AttentionPlan& plan = call.plan;
  AttentionPricer pricer(links, plan.shape, call.documents, call.execution);
  std::vector<TickPrice> ticks[2];
  const AttentionPrice price = pricer.price(plan, call.placement, &ticks[0], &ticks[1]);
  const PassPrice* passes[2] = {&price.forward, &price.backward};
  if (call.execution.overlap && (!price.forward.overlapped || !price.backward.overlapped)) {
    ExecutionOptions serial = call.execution;
    serial.overlap = false;
    AttentionPricer other(links, plan.shape, call.documents, serial);
    std::vector<TickPrice> serial_ticks[2];
    static_cast<void>(other.price(plan, call.placement, &serial_ticks[0], &serial_ticks[1]));
    for (int i = 0; i < 2; ++i)
      if (!passes[i]->overlapped) ticks[i] = std::move(serial_ticks[i]);
  }
  PriceReport report;
  report.call = call;
  report.cluster = cluster_summary(cluster);
  const schedule::TokenMap geometry(plan, call.documents);
  report.uneven_heads = !geometry.heads().even();
  std::uint32_t extrapolation = 0;
  for (int i = 0; i < (call.backward ? 2 : 1); ++i) {
    const schedule::CompactPass& pass = pricer.schedule(plan).of(i == 0 ? Pass::forward : Pass::backward);
    report.passes.push_back(pass_report(geometry, pass, *passes[i], std::move(ticks[i])));
    report.seconds += passes[i]->seconds;
    report.band += passes[i]->band * passes[i]->seconds;
    extrapolation |= passes[i]->extrapolation;
  }
  if (report.seconds > 0) report.band /= report.seconds;
  add_rates(cluster, pricer.visible_pairs(plan), report);
  report.calibration = calibration.summary(extrapolation);
  std::vector<Backend> computing{pricer.computing_backend(plan, Pass::forward)};
  if (call.backward) computing.push_back(pricer.computing_backend(plan, Pass::backward));
  for (std::string note :
       {cards.priced_devices_note(plan, call.backward, false), cards.unknown_note(plan.backend)})
    if (!note.empty()) report.notes.push_back(std::move(note));
  add_backend_notes(calibration, plan, computing, report.notes);
  if (report.uneven_heads)
    report.notes.push_back(
        fmt::format("uneven heads: {} query and {} KV heads on ulysses {}; the rank with most sets the pace",
                    plan.shape.query_heads, plan.shape.kv_heads, plan.mesh.ulysses));
  for (const TransferBytes& move : report.passes.front().transfers) {
    if (move.name != "kv_exchange") continue;
    const double hop = static_cast<double>(move.sent_max) / std::max(1, plan.mesh.ring() - 1);
    const std::string note = contended_link_note(calibration.comm, call.execution.transport,
                                                 std::min(plan.mesh.ring(), node_size(cluster)), hop);
    if (!note.empty()) report.notes.push_back(note);
  }
  if (plan.mesh.size() < static_cast<int>(cluster.devices.size()))
    report.notes.push_back(idle_devices_note(plan.mesh.size(), static_cast<i64>(cluster.devices.size())));
  return report;
}

}  // namespace usp
