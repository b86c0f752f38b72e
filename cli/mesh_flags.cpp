// SPDX-License-Identifier: Apache-2.0
#include "mesh_flags.hpp"

#include "flag_effects.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/price_report.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <string>

namespace usp::cli {
namespace {

/// Default of a flag in --help, where the verb has defaults.
std::string default_note(bool has_defaults, const std::string& text) {
  return has_defaults ? " (" + text + ")" : "";
}

template <class E>
std::string default_word(bool has_defaults, E value) {
  return default_note(has_defaults, std::string(word_of(value)));
}

void add_degree_flags(FlagGroup& group, Constraints& fixed, bool required) {
  group.number("--ring", fixed.ring, "ring degree", 1, max_degree)->required(required);
  group.number("--ulysses", fixed.ulysses, "Ulysses degree", 1, max_degree)->required(required);
}

void add_schedule_flags(FlagGroup& group, Constraints& fixed, bool has_defaults) {
  const AttentionPlan plan;
  group.number("--head-chunks", fixed.head_chunks,
               "chunks in which heads are exchanged and attended" + default_note(has_defaults, "1"), 1,
               max_head_chunks);
  group.word("--layout", fixed.layout,
             word_choice<LayoutKind>() +
                 default_note(has_defaults, std::string(word_of(plan.layout)) + "; " +
                                                std::string(word_of(LayoutKind::contiguous)) +
                                                " of full masks and of one row"));
  const std::string two_levels = std::string(word_of(default_method({2, 2, 1}))) + " with --ring-inner";
  group.word("--method", fixed.method,
             word_choice<Method>() +
                 default_note(has_defaults, std::string(word_of(plan.method)) + "; " + two_levels + "; " +
                                                std::string(word_of(gated_method())) + " with --gated"));
  group.word("--dkv-return", fixed.dkv_return,
             word_choice<DkvReturn>() + default_word(has_defaults, plan.dkv_return));
  group.word("--order", fixed.order,
             "axis on neighbouring devices: " + word_choice<AxisOrder>() +
                 default_word(has_defaults, Placement{}.order));
  group.flag(
      "--gated", fixed.gated,
      "attend remote blocks in one call with the own one, which awaits each as it lands (never chosen: its "
      "gain has not been measured)");
  group.number(
      "--gate-phases", fixed.gate_phases,
      "calls of a gated forward pass: the own block, then growing lists of remote ones, each of which "
      "awaits its own alone" +
          default_note(has_defaults, "1"),
      1, schedule::max_gate_phases);
}

/// Throws UsageError for choices that no layout has together.
void check_choices(const Constraints& fixed, std::optional<int> ring) {
  if (const std::string why = return_refused(fixed); !why.empty()) throw UsageError("--dkv-return: " + why);
  // Of several degrees the planner takes those that are long enough.
  if (const std::string why = gates_refused(fixed, {1, ring.value_or(2), 1}); !why.empty())
    throw UsageError("--gated " + why);
  if (const std::string why = phases_refused(fixed, ring); !why.empty())
    throw UsageError("--gate-phases " + why);
}

/// Throws UsageError for an inner ring that does not cut the ring.
void check_inner(int rows, std::optional<int> given) {
  const int inner = given.value_or(rows);
  if (rows % inner != 0)
    throw UsageError(fmt::format("--ring-inner: {} does not divide --ring {}; give a divisor", inner, rows));
  if (inner == 1 && rows > 1)
    throw UsageError(
        "--ring-inner 1: an inner ring of one rank is a plain ring; use --method ring without it");
  if (given && inner == rows)
    throw UsageError(
        fmt::format("--ring-inner {} is all of --ring {}, a ring that nothing cuts; leave --ring-inner out, "
                    "or give a smaller "
                    "divisor",
                    inner, rows));
}

/// Throws UsageError for a method of another mesh.
void check_method(const AttentionPlan& plan, bool cut) {
  if (plan.method->two_level_ring && !cut)
    throw UsageError(fmt::format(
        "--method {} cuts its ring into an outer and an inner one; give --ring-inner, a divisor of --ring {}",
        plan.method->word, plan.mesh.ring()));
}

}  // namespace

void add_layout_flags(const Verb& verb, MeshFlags& flags) {
  FlagGroup group(verb, "Layout");
  add_degree_flags(group, flags.fixed, true);
  group.number("--ring-inner", flags.ring_inner, "inner ring of a double ring; divides --ring", 1,
               max_degree);
  add_schedule_flags(group, flags.fixed, true);
  group.flag("--prune", flags.prune, "send only the KV rows that a receiver's mask can see");
}

void add_constraint_flags(const Verb& verb, MeshFlags& flags) {
  FlagGroup group(verb, "Decided already (the planner chooses the rest)");
  add_degree_flags(group, flags.fixed, false);
  group.number("--data", flags.fixed.data, "data-parallel replicas", 1, max_ranks);
  group.number("--tensor", flags.fixed.tensor, "tensor-parallel degree", 1, max_ranks);
  add_schedule_flags(group, flags.fixed, false);
}

void check_mesh(const MeshFlags& flags, bool forward_only, SweptDegrees swept) {
  const Constraints& fixed = flags.fixed;
  if (!swept.ring)
    refuse_without_ring(fixed.ring, {{"--ring-inner", flags.ring_inner.has_value()},
                                     {"--method", fixed.method.has_value()},
                                     {"--layout", fixed.layout.has_value()},
                                     {"--dkv-return", fixed.dkv_return.has_value()},
                                     {"--prune", flags.prune},
                                     {"--gated", fixed.gated},
                                     {"--gate-phases", fixed.gate_phases.has_value()}});
  check_choices(fixed, swept.ring ? std::nullopt : fixed.ring);
  if (fixed.order && !swept.ring && !swept.ulysses) refuse_order_of_one_axis(fixed.ring, fixed.ulysses);
  refuse_without_backward(forward_only, {{"--dkv-return", fixed.dkv_return.has_value()}});
}

void set_layout(const MeshFlags& flags, AttentionPlan& plan) {
  const Constraints& fixed = flags.fixed;
  const int rows = fixed.ring.value_or(1), inner = flags.ring_inner.value_or(rows);
  check_inner(rows, flags.ring_inner);
  plan.mesh = {rows / inner, inner, fixed.ulysses.value_or(1)};
  plan.method = fixed.method.value_or(fixed.gated && rows > 1 ? gated_method() : default_method(plan.mesh));
  if (inner != rows && !plan.method->two_level_ring)
    throw UsageError("--ring-inner cuts the ring of --method double_ring; leave one of them out");
  plan.layout = fixed.layout.value_or(default_layout(plan.mesh, plan.band));
  plan.dkv_return = fixed.dkv_return.value_or(plan.dkv_return);
  check_method(plan, inner != rows);
  plan.head_chunks = fixed.head_chunks.value_or(1);
  plan.prune = flags.prune;
  plan.gated = fixed.gated;
  plan.gate_phases = fixed.gate_phases.value_or(1);
  Constraints stated = fixed;
  stated.method = plan.method;
  check_choices(stated, rows);
  plan.split_own_block = schedule::splits_own_block(plan);
}

Placement placement_of(const MeshFlags& flags) {
  Placement placement;
  placement.order = flags.fixed.order.value_or(placement.order);
  return placement;
}

ExecutionOptions ExecutionFlags::options() const {
  ExecutionOptions options = execution_options(transport.value_or(ExecutionOptions{}.transport));
  options.overlap = !no_overlap;
  return options;
}

void check_transport(const ExecutionFlags& flags, const topology::Cluster& cluster) {
  if (!flags.transport || !topology::on_host_cores(cluster)) return;
  throw UsageError(fmt::format(
      "--transport carries data between GPUs, and the devices of {} are ranks on the cores of their hosts; "
      "leave it out",
      cluster.name));
}

void add_execution_flags(const Verb& verb, ExecutionFlags& flags, const char* name) {
  FlagGroup group(verb, name);
  group.word("--transport", flags.transport,
             "inside a host: " + word_choice<Transport>() + " (" +
                 std::string(word_of(ExecutionOptions{}.transport)) + "); " +
                 std::string(word_of(Transport::nccl)) + " has pack kernels and slower attention");
  group.flag("--no-overlap", flags.no_overlap, "transfers and kernels one after another");
}

}  // namespace usp::cli
