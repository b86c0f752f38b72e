// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/device/device.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/planner/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::cli {

void add_plan_file_flags(const Verb& verb, PlanFileFlags& flags) {
  FlagGroup group(verb, plain_group);
  group.option("PLAN", flags.file, "plan file, '-' for stdin")->required()->type_name(input_file);
  group.number("--layer", flags.layer, "kind of attention layer, by its place in the plan (0)", 0);
  group.documents(flags.documents, "lengths of another batch within the plan's capacity");
}

void add_comm_flags(const Verb& verb, CommFlags& flags, const std::string& watchdog_note) {
  FlagGroup group(verb, plain_group);
  group.number(
      "--watchdog", flags.watchdog_s,
      "seconds that a rank may wait for its peers, to start and in the run" + watchdog_note + " (60)", 1e-3,
      1e6);
  group.flag("--trust-network", flags.trust_network,
             "ranks of torchrun may meet over a network without a secret (USP_JOB_TOKEN, or torchrun's "
             "--rdzv-id where it is random): only the ranks reach their ports");
}

namespace {

/// "hopper_cudnn, cudnn or mma".
std::string preferred_words() {
  std::string words;
  for (const Backend backend : preferred_gpu_backends())
    words += (words.empty() ? "" : ", ") + std::string(word_of(backend));
  return words + " or " + std::string(word_of(last_fallback(preferred_gpu_backend())));
}

}  // namespace

void add_run_flags(const Verb& verb, RunFlags& flags) {
  add_plan_file_flags(verb, flags.plan);
  FlagGroup group(verb, plain_group);
  group.number("--seed", flags.seed, "of the random tensors and of dropout (0)", 0);
  group.option("--kernel", flags.kernel, kernels::kernel_words(" or ") + " (the plan's backend)");
  group.word("--device", flags.device,
             word_choice<RunOn>() +
                 fmt::format(", whatever the plan's backend is: cuda takes {}: the first that the card runs "
                             "and that is installed (the plan's)",
                             preferred_words()));
  group.word("--ulysses-transport", flags.ulysses_transport,
             "of GPUs, along the Ulysses axis: " + word_choice<Transport>() + " (the plan's)");
  group.word("--ring-transport", flags.ring_transport, "the same along the ring (the plan's)");
  group.flag("--deterministic", flags.deterministic,
             "gradients repeat bit for bit; on the host they always do");
  group.option("--devices", flags.devices, "GPUs of the ranks, such as 0,1, round and round (all)")
      ->delimiter(',')
      ->check(within(0));
  add_comm_flags(verb, flags.comm,
                 "; bench, which lets one rank do the work of all in between, waits (ranks + 1) times that");
  group.flag("--forward-only", flags.forward_only, "no backward pass, though the plan has one");
}

namespace {

/// What carries an axis instead of what the plan says.
void set_transport(std::optional<Transport> wanted, const char* axis, int degree, const LoadedCall& call,
                   Transport& target) {
  if (!wanted) return;
  const std::string flag = std::string("--") + axis + "-transport";
  if (!runs_on_gpu(call.plan, call.options))
    throw UsageError(flag +
                     " carries data between GPUs, and this plan runs on the host: give --device cuda, "
                     "or leave it out");
  if (degree == 1)
    throw UsageError(flag + ": the plan's " + axis + " axis is one rank, which sends nothing; leave it out");
  target = *wanted;
}

/// Ranks of one host go to the devices that the plan's placement names, where no flag names others.
void follow_placement(LoadedCall& call) {
  const Placement& placement = call.file.placement;
  if (placement.devices.empty() || !call.options.devices.empty() || !runs_on_gpu(call.plan, call.options))
    return;
  const int count = device::device_count();
  std::vector<int> devices;
  for (int rank = 0; rank < call.plan.mesh.size(); ++rank)
    devices.push_back(placement.device_of(call.plan.mesh, 0, rank));
  if (std::all_of(devices.begin(), devices.end(), [&](int device) { return device < count; }))
    call.options.devices = std::move(devices);
}

/// Puts the call on the hardware that the flags name.
void place(const RunFlags& flags, LoadedCall& call) {
  std::optional<RunOn> on = flags.device;
  if (flags.gpu && on == RunOn::host)
    throw UsageError("--gpu and --device cpu contradict each other; leave one of them out");
  if (flags.gpu) on = RunOn::gpu;
  const PlacedPlan placed = place_plan(call.plan, on, flags.kernel, [&](Backend backend) {
    return why_not_available(backend, flags.devices);
  });
  if (placed.note.empty()) return;
  const std::string before = plan_digest(call.file);
  call.plan = call.file.layers[flags.plan.layer].plan = placed.plan;
  call.note = placed.note + "; its schedule and digest are not the file's: " + plan_digest(call.file) +
              " instead of " + before;
}

}  // namespace

comm::CommOptions comm_options(const CommFlags& flags) {
  comm::CommOptions options;
  if (flags.watchdog_s) options.watchdog_s = *flags.watchdog_s;
  options.trust_network = flags.trust_network;
  return options;
}

std::string trust_network_note() {
  if (!comm::torchrun_launched())
    throw UsageError(
        "--trust-network is for ranks that torchrun starts, which meet over TCP, and this process is none; "
        "leave it out");
  return comm::trust_note(comm::torchrun_job());
}

RunRequest run_request(const RunFlags& flags, const LoadedCall& call) {
  RunRequest request;
  request.plan_digest = call.file_digest;
  request.layer = flags.plan.layer;
  request.documents = flags.plan.documents;
  request.forward_only = flags.forward_only;
  request.seed = flags.seed.value_or(0);
  const std::optional<RunOn> device = flags.gpu ? RunOn::gpu : flags.device;
  if (device) request.device = word_of(*device);
  request.kernel = flags.kernel;
  request.devices = flags.devices;
  request.ulysses_transport = flags.ulysses_transport;
  request.ring_transport = flags.ring_transport;
  request.deterministic = flags.deterministic;
  request.watchdog_s = comm_options(flags).watchdog_s;
  request.trust_network = flags.comm.trust_network;
  request.repeat = call.options.repeat;
  return request;
}

LoadedCall load_call(const RunFlags& flags) {
  LoadedCall call;
  call.file = read_plan(read_file(flags.plan.file), flags.plan.file);
  call.file_digest = plan_digest(call.file);
  const PlanLayer& layer = layer_at(call.file, flags.plan.layer);
  call.plan = layer.plan;
  const bool given = !flags.plan.documents.empty();
  const std::vector<i64>& lengths = given ? flags.plan.documents : call.file.documents;
  if (given) check_other_batch(call.file, layer, lengths);
  call.documents = layer_documents(layer, lengths, given ? std::vector<i64>{} : call.file.kv_documents);
  if (call.documents.cu_q.back() > call.plan.shape.q_tokens)
    throw UsageError(fmt::format("--documents: {} tokens exceed the plan's capacity of {}",
                                 call.documents.cu_q.back(), call.plan.shape.q_tokens));
  call.options.training = call.file.training && !flags.forward_only;
  call.options.kernel = flags.kernel;
  call.options.devices = flags.devices;
  call.options.deterministic = flags.deterministic;
  call.options.ulysses_transport = call.file.ulysses_transport;
  call.options.ring_transport = call.file.ring_transport;
  call.options.comm = comm_options(flags);
  if (flags.comm.trust_network) call.network_note = trust_network_note();
  place(flags, call);
  follow_placement(call);
  const Mesh& mesh = call.plan.mesh;
  set_transport(flags.ulysses_transport, "ulysses", mesh.ulysses, call, call.options.ulysses_transport);
  set_transport(flags.ring_transport, "ring", mesh.ring(), call, call.options.ring_transport);
  return call;
}

}  // namespace usp::cli
