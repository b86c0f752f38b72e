// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/workload.hpp"
#include "usp/runtime/devices.hpp"

namespace usp::cli {

std::shared_ptr<RunFlags> add_run_flags(CLI::App& verb) {
  auto flags = std::make_shared<RunFlags>();
  verb.add_option("PLAN", flags->file, "plan file, '-' for stdin")->required()->type_name(input_file);
  verb.add_option("--layer", flags->layer, "kind of attention layer, by its place in the plan (0)")
      ->check(within(std::size_t{0}));
  verb.add_option("--documents", flags->documents, "lengths of another batch within the plan's capacity");
  verb.add_option("--seed", flags->seed, "of the random tensors and of dropout (0)")
      ->check(within(std::uint64_t{0}));
  verb.add_option("--kernel", flags->kernel, "cpu, reference, mma or cudnn (the plan's backend)");
  verb.add_option("--device", flags->device,
                  "cpu or cuda, whatever the plan's backend is: cuda takes cudnn where it is there, else "
                  "mma (where the plan says)");
  verb.add_option("--ulysses-transport", flags->ulysses_transport,
                  "of GPUs, along the Ulysses axis: copy_engine or nccl (the plan's)");
  verb.add_option("--ring-transport", flags->ring_transport, "the same along the ring (the plan's)");
  verb.add_flag("--deterministic", flags->deterministic,
                "gradients repeat bit for bit; on the host they always do");
  verb.add_option("--devices", flags->devices, "GPUs of the ranks, such as 0,1, round and round (all)")
      ->delimiter(',')
      ->check(within(0));
  verb.add_option("--watchdog", flags->watchdog_s,
                  "seconds that a rank may wait for its peers, to start and in the run; bench, which lets "
                  "one rank do the work of all in "
                  "between, waits (ranks + 1) times that (60)")
      ->check(within(1e-3, 1e6));
  verb.add_flag("--trust-network", flags->trust_network,
                "ranks of torchrun may meet over a network without a secret (USP_JOB_TOKEN, or torchrun's "
                "--rdzv-id where it is random): nobody else reaches their ports");
  verb.add_flag("--forward-only", flags->forward_only, "no backward pass, though the plan has one");
  return flags;
}

namespace {

/// What carries an axis instead of what the plan says.
void set_transport(const std::string& text, const char* axis, int degree, const LoadedCall& call,
                   Transport& target) {
  if (text.empty()) return;
  const std::string flag = std::string("--") + axis + "-transport";
  const auto wanted = parse_word<Transport>(text, flag);
  if (!runs_on_gpu(call.plan, call.options))
    throw UsageError(flag +
                     " carries data between GPUs, and this plan runs on the host: give --device cuda, "
                     "or leave it out");
  if (degree == 1)
    throw UsageError(flag + ": the plan's " + axis + " axis is one rank, which sends nothing; leave it out");
  target = wanted;
}

/// Refuses the flag where no launcher of processes over TCP makes it effective.
void trust_network(LoadedCall& call) {
  if (!torchrun_launched())
    throw UsageError(
        "--trust-network is for ranks that torchrun starts, which meet over TCP, and this process is none; "
        "leave it out");
  call.network_note = trust_note(torchrun_job());
}

/// Puts the call on the hardware that the flags name.
void place(const RunFlags& flags, LoadedCall& call) {
  RunOn on = flags.device.empty() ? RunOn::planned : parse_run_on(flags.device, "--device");
  if (flags.gpu && on == RunOn::host)
    throw UsageError("--gpu and --device cpu contradict each other; leave one of them out");
  if (flags.gpu) on = RunOn::gpu;
  const PlacedPlan placed =
      place_plan(call.plan, on, flags.kernel, [&] { return why_no_cudnn(flags.devices); });
  if (placed.note.empty()) return;
  const std::string before = plan_digest(call.file);
  call.plan = call.file.layers[flags.layer].plan = placed.plan;
  call.note = placed.note + "; its schedule and digest are not the file's: " + plan_digest(call.file) +
              " instead of " + before;
}

}  // namespace

CommOptions comm_options(const RunFlags& flags) {
  CommOptions options;
  if (flags.watchdog_s) options.watchdog_s = *flags.watchdog_s;
  options.trust_network = flags.trust_network;
  return options;
}

RunRequest run_request(const RunFlags& flags, const LoadedCall& call) {
  RunRequest request;
  request.plan_digest = call.file_digest;
  request.layer = flags.layer;
  if (!flags.documents.empty()) request.documents = parse_document_lengths(flags.documents, "--documents");
  request.forward_only = flags.forward_only;
  request.seed = flags.seed.value_or(0);
  request.device = flags.gpu ? "cuda" : flags.device;
  request.kernel = flags.kernel;
  request.devices = flags.devices;
  if (!flags.ulysses_transport.empty())
    request.ulysses_transport = parse_word<Transport>(flags.ulysses_transport, "--ulysses-transport");
  if (!flags.ring_transport.empty())
    request.ring_transport = parse_word<Transport>(flags.ring_transport, "--ring-transport");
  request.deterministic = flags.deterministic;
  request.watchdog_s = comm_options(flags).watchdog_s;
  request.trust_network = flags.trust_network;
  request.repeat = call.options.repeat;
  return request;
}

LoadedCall load_call(const RunFlags& flags) {
  LoadedCall call;
  call.file = read_plan(read_file(flags.file), flags.file);
  call.file_digest = plan_digest(call.file);
  const PlanLayer& layer = layer_at(call.file, flags.layer);
  call.plan = layer.plan;
  const bool given = !flags.documents.empty();
  const std::vector<i64> lengths =
      given ? parse_document_lengths(flags.documents, "--documents") : call.file.documents;
  if (given) check_other_batch(call.file, layer, lengths);
  call.documents = layer_documents(layer, lengths);
  if (call.documents.cu_q.back() > call.plan.shape.q_tokens)
    throw UsageError("--documents: " + std::to_string(call.documents.cu_q.back()) +
                     " tokens exceed the plan's capacity of " + std::to_string(call.plan.shape.q_tokens));
  call.options.training = call.file.training && !flags.forward_only;
  call.options.kernel = flags.kernel;
  call.options.devices = flags.devices;
  call.options.deterministic = flags.deterministic;
  call.options.ulysses_transport = call.file.ulysses_transport;
  call.options.ring_transport = call.file.ring_transport;
  call.options.comm = comm_options(flags);
  if (flags.trust_network) trust_network(call);
  place(flags, call);
  const Mesh& mesh = call.plan.mesh;
  set_transport(flags.ulysses_transport, "ulysses", mesh.ulysses, call, call.options.ulysses_transport);
  set_transport(flags.ring_transport, "ring", mesh.ring(), call, call.options.ring_transport);
  return call;
}

}  // namespace usp::cli
