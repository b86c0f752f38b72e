// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/executor.hpp"

#include "call_checks.hpp"
#include "call_workspace.hpp"
#include "inputs_digest.hpp"
#include "on_stream.hpp"
#include "pass_runner.hpp"
#include "recent_calls.hpp"
#include "require.hpp"
#include "score.hpp"
#include "sink_lists.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <unistd.h>
#include <utility>

namespace usp {
namespace {

[[nodiscard]] std::size_t index_of(Pass pass) {
  return pass == Pass::forward ? 0 : 1;
}

/// Inputs are only read; one view type serves all buffers of a schedule.
[[nodiscard]] kernels::View read_only(const kernels::ConstView& view) {
  kernels::View target(const_cast<std::byte*>(view.data), view.type, view.batch, view.rows, view.heads,
                       view.width);
  target.batch_stride = view.batch_stride, target.row_stride = view.row_stride,
  target.head_stride = view.head_stride;
  return target;
}

/// Why a capture is refused.
[[nodiscard]] std::string not_warm(Pass pass) {
  return fmt::format(
      "the first {} of a batch makes room and agrees with other ranks, which a CUDA graph cannot hold; "
      "run it once before the capture",
      pass == Pass::forward ? "forward" : "backward");
}

/// What runs one Prepared, again and again.
struct Execution {
  std::weak_ptr<const Prepared> prepared;
  std::array<std::optional<PassRunner>, 2> runner;
  std::array<PassRecord, 2> record;
  std::array<bool, 2> warm{};  ///< the pass has run
};

}  // namespace

struct Executor::State {
  State(comm::DataPlane& t, kernels::AttentionKernel& k, const ExecutorOptions& o)
      : data_plane(t),
        communicator(t.control()),
        kernel(k),
        memory(k.memory()),
        options(o),
        workspace(data_plane, memory),
        sinks(memory) {}

  State(std::unique_ptr<comm::DataPlane> owned, kernels::AttentionKernel& k, const ExecutorOptions& o)
      : State(*owned, k, o) {
    own_data_plane = std::move(owned);
  }

  std::unique_ptr<comm::DataPlane> own_data_plane;  ///< null: lent
  comm::DataPlane& data_plane;
  comm::Communicator& communicator;
  kernels::AttentionKernel& kernel;
  kernels::Memory& memory;
  ExecutorOptions options;
  CallWorkspace workspace;
  std::map<const Prepared*, Execution> executions;
  std::set<std::uint64_t> admitted;  ///< plan keys
  RecentCalls recent;                ///< goes before the data plane
  SinkLists sinks;
  kernels::ScoreTerms terms;
  const ::pid_t process = ::getpid();

  /// Whether what comes with a call lies where reading it costs nothing.
  [[nodiscard]] bool on_host() const { return memory.stream() == nullptr; }
  void admit(const AttentionPlan& plan, std::uint64_t key);
  RecentCall& reserve(const std::shared_ptr<const Prepared>& prepared);
  void connect(const Prepared& prepared, RecentCall& call);
  Execution& execution(const std::shared_ptr<const Prepared>& prepared);
  void check_call(const std::shared_ptr<const Prepared>& prepared, const AttentionInputs& in) const;
  void check_capture(const Prepared& prepared, Pass pass) const;
  void check_saved(const Prepared& prepared, const AttentionInputs& in, const SavedState& saved) const;
  void compare(const Prepared& prepared, RecentCall& call, const AttentionInputs& in, std::uint64_t digest);
  [[nodiscard]] std::uint64_t digest_of_call(const Prepared& prepared, const AttentionInputs& in) const;
  void place_saved(const Prepared& prepared, Pass pass, PassRunner& runner, std::byte* saved) const;
  void place_inputs(const Prepared& prepared, Pass pass, PassRunner& runner, const AttentionInputs& in) const;
  void run(const Prepared& prepared, Pass pass, RecentCall& call, const AttentionInputs& in,
           const AttentionGradients* gradients);
};

/// A call's stream, and what the call took of the memory's allocator for as long as it runs.
class Executor::CallScope {
 public:
  CallScope(State& state, device::StreamRef stream)
      : memory_(state.memory), releases_(state.options.release_scratch), on_stream_(memory_, stream) {}
  ~CallScope() {
    if (releases_) memory_.release_scratch();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  kernels::Memory& memory_;
  bool releases_;
  OnStream on_stream_;  ///< the release comes before its end
};

Executor::Executor(comm::DataPlane& data_plane, kernels::AttentionKernel& kernel,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(data_plane, kernel, options)) {}
Executor::Executor(comm::Communicator& communicator, kernels::AttentionKernel& kernel,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(comm::make_message_data_plane(communicator), kernel, options)) {}

Executor::~Executor() = default;

void Executor::admit(const AttentionPlan& plan) {
  state_->admit(plan, digest(plan));
}

/// The plan may have a batch's counts of tokens; the key is that of its capacity.
void Executor::State::admit(const AttentionPlan& plan, std::uint64_t key) {
  check_attention_plan(plan);
  check_runs_plan(plan, kernel, communicator.size());
  const AttentionShape& shape = plan.shape;
  comm::agree(communicator, {{"dtype", Digest().add(shape.dtype).value()},
                             {"shape", Digest()
                                           .add(shape.batch)
                                           .add(shape.q_tokens)
                                           .add(shape.kv_tokens)
                                           .add(shape.query_heads)
                                           .add(shape.kv_heads)
                                           .add(shape.head_dim_qk)
                                           .add(shape.head_dim_v)
                                           .value()},
                             {"layout", Digest().add(plan.layout).value()},
                             {"plan", key}});
  admitted.insert(key);
}

void Executor::reserve(const std::shared_ptr<const Prepared>& prepared) {
  const CallScope scope(*state_, {});
  (void)state_->reserve(prepared);
}

/// Workspace, runners and channels of a call.
RecentCall& Executor::State::reserve(const std::shared_ptr<const Prepared>& prepared) {
  RecentCall& call = recent.of(prepared->call_key());
  const bool is_new = call.channels[0] == nullptr;
  try {
    workspace.reserve(*prepared, options.forward_only, is_new);
  } catch (...) {
    recent.clear();  // the workspace of earlier calls is gone too
    throw;
  }
  (void)execution(prepared);
  if (is_new) connect(*prepared, call);
  return call;
}

void Executor::State::connect(const Prepared& prepared, RecentCall& call) {
  Execution& e = executions.at(&prepared);
  std::array<std::unique_ptr<comm::Channels>, 2> channels;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && options.forward_only) continue;
    PassRunner& runner = *e.runner[index_of(pass)];
    workspace.place_reached(prepared, pass, runner);
    channels[index_of(pass)] = data_plane.connect(runner.ends(workspace.has_peer_arena()));
  }
  call.channels = std::move(channels);
}

/// A new one drops those of batches that are gone, with their prepared steps.
Execution& Executor::State::execution(const std::shared_ptr<const Prepared>& prepared) {
  const auto known = executions.find(prepared.get());
  if (known != executions.end() && !known->second.prepared.expired()) return known->second;
  if (!on_host())
    for (const Pass pass : {Pass::forward, Pass::backward})
      check_gpu_steps(prepared->schedule(pass), prepared->plan().shape.batch);
  for (auto entry = executions.begin(); entry != executions.end();)
    entry = entry->second.prepared.expired() ? executions.erase(entry) : std::next(entry);
  Execution& e = executions[prepared.get()];
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const schedule::RankSchedule& schedule = prepared->schedule(pass);
    e.runner[index_of(pass)].emplace(schedule, kernel, options);
    PassRecord& record = e.record[index_of(pass)];
    record.pass = pass;
    record.transfers = planned_transfers(schedule);
    record.workspace_bytes = prepared->workspace_bytes(pass);
    record.ticks.resize(schedule.ticks.size());
  }
  e.prepared = prepared;  // last: an entry without is made anew
  return e;
}

void Executor::State::check_call(const std::shared_ptr<const Prepared>& prepared,
                                 const AttentionInputs& in) const {
  require(::getpid() == process,
          "the executor belongs to the process that made it, and this is a child of "
          "it (fork): make one in the child, or start workers with spawn");
  require(prepared != nullptr, "no prepared call was given; make one with Batch::prepare");
  require(prepared->rank() == communicator.rank(),
          fmt::format("the call was prepared for rank {}, the communicator's is {}; prepare on the rank that "
                      "runs",
                      prepared->rank(), communicator.rank()));
  require(prepared->reach() == data_plane.reach(),
          "the call was prepared for another reach of peers than the data plane's; give DataPlane::reach of "
          "it to "
          "Batches, Batch or Prepared");
  check_inputs(*prepared, in);
}

/// A graph holds what this rank's stream does, and nothing that its host thread says to others.
void Executor::State::check_capture(const Prepared& prepared, Pass pass) const {
  if (on_host() || !device::is_capturing(memory.stream())) return;
  const std::string obstacle = data_plane.capture_obstacle();
  require(obstacle.empty(),
          fmt::format("a CUDA graph cannot hold the exchanges of {}: {}; use NCCL on every axis, or capture "
                      "around the call",
                      data_plane.name(), obstacle));
  const auto known = executions.find(&prepared);
  require(known != executions.end() && known->second.warm[index_of(pass)] &&
              recent.connected(prepared.call_key()),
          not_warm(pass));
  require(!options.measure_workspace && !options.stream_times,
          "a captured call cannot measure itself; leave out measure_workspace and stream_times");
  require(prepared.plan().score.dropout == 0, "a replayed graph would drop the same pairs in every step");
}

std::uint64_t Executor::State::digest_of_call(const Prepared& prepared, const AttentionInputs& in) const {
  return digest_of_lists(prepared.plan(), in, memory, on_host() ? DigestOf::content : DigestOf::addresses);
}

/// See ExecutorOptions::compare_inputs.
void Executor::State::compare(const Prepared& prepared, RecentCall& call, const AttentionInputs& in,
                              std::uint64_t digest) {
  if (!options.compare_inputs) return;
  const AttentionPlan& plan = prepared.plan();
  const bool copies = !plan.replicated_q.empty() || !plan.replicated_k.empty();
  const bool per_head = plan.sink || plan.score.alibi || plan.score.block_tokens > 0;
  const bool is_new = !call.compared;
  if (on_host() && (is_new || copies || per_head || plan.score.dropout != 0)) {
    comm::agree(communicator,
                {{"inputs", digest}, {"q, k, v of replicated tokens", digest_of_replicated_rows(plan, in)}});
  } else if (is_new) {
    comm::agree(communicator, {{"inputs", digest_of_lists(plan, in, memory, DigestOf::content)}});
  } else if (plan.score.dropout != 0) {
    comm::agree(communicator, {{"dropout_seed", in.dropout_seed}});
  }
  call.compared = true;
}

void Executor::State::place_saved(const Prepared& prepared, Pass pass, PassRunner& runner,
                                  std::byte* saved) const {
  if (!on_host() && reinterpret_cast<std::uintptr_t>(saved) % buffer_alignment != 0)
    throw UsageError(fmt::format("the saved state begins at {}; on a GPU it needs a boundary of {} bytes",
                                 static_cast<const void*>(saved), buffer_alignment));
  place_packed(prepared, pass, runner, saved, &Prepared::saved_offset);
}

void Executor::State::place_inputs(const Prepared& prepared, Pass pass, PassRunner& runner,
                                   const AttentionInputs& in) const {
  const auto place = [&](Tensor tensor, const kernels::ConstView& view) {
    runner.place(prepared.input(pass, {tensor, BufferSlot::home}), read_only(view));
  };
  place(Tensor::q, in.q);
  place(Tensor::k, in.k);
  place(Tensor::v, in.v);
}

void Executor::State::run(const Prepared& prepared, Pass pass, RecentCall& call, const AttentionInputs& in,
                          const AttentionGradients* gradients) {
  const AttentionPlan& plan = prepared.plan();
  Execution& e = executions.at(&prepared);
  PassRecord& record = e.record[index_of(pass)];
  if (options.measure_workspace) workspace.poison(prepared, pass);
  terms = score_terms(plan, in);
  StepInputs inputs;
  inputs.group = plan.shape.query_heads / plan.shape.kv_heads;
  inputs.terms = &terms;
  const int heads = plan.shape.query_heads;
  inputs.sink = sinks.read({static_cast<const std::byte*>(in.sink), in.sink_type}, heads);
  if (gradients != nullptr)
    inputs.d_sink =
        sinks.sum_for({static_cast<std::byte*>(gradients->d_sink), gradients->d_sink_type}, heads);
  PassRunner& runner = *e.runner[index_of(pass)];
  if (!on_host() && device::is_capturing(memory.stream()))
    require(runner.hold_steps(inputs), not_warm(pass));  // tensors of another form were not prepared for
  runner.run(inputs, *call.channels[index_of(pass)], record);
  sinks.finish_sum();
  e.warm[index_of(pass)] = true;
  if (options.measure_workspace) record.touched_bytes = workspace.touched_bytes(prepared, pass);
}

void Executor::forward(const std::shared_ptr<const Prepared>& prepared, const AttentionInputs& in,
                       kernels::View out, kernels::View lse, SavedState& saved, device::StreamRef stream) {
  State& s = *state_;
  s.check_call(prepared, in);
  const CallScope scope(s, stream);
  s.check_capture(*prepared, Pass::forward);
  check_results(*prepared, in, out, lse, saved.memory_);
  require(saved.arena_ != nullptr || saved.bytes() >= prepared->saved_bytes(),
          fmt::format(
              "the saved state has {} bytes, this forward saves {}; give as many as Prepared::saved_bytes "
              "(in C usp_batch_sizes.saved_bytes) says",
              saved.bytes(), prepared->saved_bytes()));
  if (!s.admitted.contains(prepared->plan_key())) s.admit(prepared->plan(), prepared->plan_key());
  RecentCall& call = s.reserve(prepared);
  const std::uint64_t inputs = s.digest_of_call(*prepared, in);
  s.compare(*prepared, call, in, inputs);
  saved.forward_ = {};  // until this one has run to its end
  if (saved.arena_ != nullptr) saved.arena_->reserve(prepared->saved_bytes());
  PassRunner& runner = *s.execution(prepared).runner[0];
  s.workspace.place(*prepared, Pass::forward, runner);
  s.place_saved(*prepared, Pass::forward, runner, saved.data());
  s.place_inputs(*prepared, Pass::forward, runner, in);
  runner.place(prepared->result(Pass::forward, {Tensor::o, BufferSlot::home}), out);
  if (prepared->plan().return_lse)
    runner.place(prepared->result(Pass::forward, {Tensor::lse, BufferSlot::home}), lse);
  s.run(*prepared, Pass::forward, call, in, nullptr);
  saved.forward_ = {.prepared = prepared, .inputs = inputs};
}

void Executor::State::check_saved(const Prepared& prepared, const AttentionInputs& in,
                                  const SavedState& saved) const {
  const SavedState::Forward& forward = saved.forward_;
  require(forward.prepared != nullptr,
          "the saved state holds no forward: backward comes after forward of the same batch");
  require(forward.prepared.get() == &prepared,
          "the saved state is that of another batch or plan: give backward what its forward was given");
  require(!forward.spent,
          "backward has run already with this saved state: run forward again, or SavedState::retain it");
  require(saved.bytes() >= prepared.saved_bytes(),
          fmt::format("the saved state has {} bytes, its forward saved {}", saved.bytes(),
                      prepared.saved_bytes()));
  require(forward.assumed || digest_of_call(prepared, in) == forward.inputs,
          "backward was given other sinks, slopes, blocks, seed or layer than forward");
}

void Executor::backward(const std::shared_ptr<const Prepared>& prepared, const AttentionInputs& in,
                        kernels::ConstView out, kernels::ConstView d_out, const AttentionGradients& gradients,
                        SavedState& saved, device::StreamRef stream) {
  State& s = *state_;
  require(!s.options.forward_only, "the executor was made for forward alone (ExecutorOptions::forward_only)");
  s.check_call(prepared, in);
  const CallScope scope(s, stream);
  s.check_capture(*prepared, Pass::backward);
  s.check_saved(*prepared, in, saved);
  check_gradients(*prepared, in, d_out, gradients, out, saved.memory_);
  RecentCall& call = s.reserve(prepared);
  PassRunner& runner = *s.execution(prepared).runner[1];
  s.workspace.place(*prepared, Pass::backward, runner);
  s.place_saved(*prepared, Pass::backward, runner, saved.data());
  s.place_inputs(*prepared, Pass::backward, runner, in);
  runner.place(prepared->input(Pass::backward, {Tensor::d_o, BufferSlot::home}), read_only(d_out));
  const schedule::BufferId home_o = prepared->input(Pass::backward, {Tensor::o, BufferSlot::home});
  if (home_o >= 0) runner.place(home_o, read_only(out));
  s.workspace.place_gradients(*prepared, runner, gradients);
  s.run(*prepared, Pass::backward, call, in, &gradients);
  s.workspace.finish_gradients(*prepared, runner, gradients);
  saved.forward_.spent = true;
}

comm::Communicator& Executor::communicator() const {
  return state_->communicator;
}
comm::DataPlane& Executor::data_plane() const {
  return state_->data_plane;
}
kernels::AttentionKernel& Executor::kernel() const {
  return state_->kernel;
}
kernels::Memory& Executor::memory() const {
  return state_->memory;
}
i64 Executor::workspace_bytes() const {
  return state_->workspace.bytes();
}

const PassRecord& Executor::record(const Prepared& prepared, Pass pass) const {
  const auto known = state_->executions.find(&prepared);
  require(known != state_->executions.end() && !known->second.prepared.expired(),
          "this executor has run no call of this batch and plan; run forward first");
  return known->second.record[index_of(pass)];
}

}  // namespace usp
