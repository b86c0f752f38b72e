// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/attention.hpp"

#include "batch.hpp"
#include "call_checks.hpp"
#include "score.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/schedule/kernel_scratch.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace usp {
namespace {

/// The highest byte of no number that an attention call computes: fp16 NaN, beyond 1e37 in the other types.
constexpr unsigned char poison_byte = 0x7e;

void require(bool holds, const std::string& text) {
  if (!holds) throw UsageError(text);
}

/// Of the first rows of a tensor on the host, which are those of the tokens that every rank holds.
std::uint64_t digest_of_rows(const ConstView& view, const std::vector<Range>& replicated) {
  i64 rows = 0;
  for (const Range& range : replicated) rows += range.size();
  Digest d;
  for (i64 b = 0; b < view.batch; ++b)
    for (i64 row = 0; row < std::min(rows, view.rows); ++row)
      for (i64 head = view.heads.begin; head < view.heads.end; ++head)
        d.add(digest_of_bytes(view.at(b, row, head),
                              static_cast<std::size_t>(view.width * bytes_of(view.type))));
  return d.value();
}

/// Where a tensor lies and how: whether two calls were given the same one.
struct Lies {
  Lies() = default;
  explicit Lies(const ConstView& v)
      : data(v.data), batch_stride(v.batch_stride), row_stride(v.row_stride), head_stride(v.head_stride) {}
  const std::byte* data = nullptr;
  i64 batch_stride = 0, row_stride = 0, head_stride = 0;
  bool operator==(const Lies&) const = default;
};

}  // namespace

struct AttentionOperator::State {
  State(AttentionPlan p, Communicator& c, AttentionKernel& k, const OperatorOptions& o)
      : plan(std::move(p)),
        communicator(c),
        kernel(k),
        memory(k.memory()),
        options(o),
        workspace(memory.make_arena()),
        saved(memory.make_arena()),
        sums(memory.make_arena()) {}

  AttentionPlan plan;
  Communicator& communicator;
  AttentionKernel& kernel;
  Memory& memory;
  OperatorOptions options;
  std::unique_ptr<Batch> batch;
  std::optional<PassRunner> runner[2];
  PassRecord records[2];
  std::unique_ptr<Arena> workspace, saved, sums;
  std::vector<i64> q_tokens, kv_tokens;
  ScoreTerms terms;
  i64 calls = 0;
  /// Of the last forward, whose state the operator holds: backward must be given the same.
  std::uint64_t forward_inputs = 0;  ///< digest of what comes with the call
  Lies forward_q, forward_k, forward_v;
  bool inputs_agreed = false;
  bool have_forward = false;
  bool warm[2] = {};  ///< the pass has run since set_batch
  View out;           ///< of the last forward

  [[nodiscard]] static int index(Pass pass) { return pass == Pass::forward ? 0 : 1; }
  [[nodiscard]] const Buffer& buffer(Pass pass, BufferId id) const {
    return batch->schedule(pass).buffers[static_cast<std::size_t>(id)];
  }

  void check_inputs(const AttentionInputs& in) const {
    require(batch != nullptr, "set_batch comes before forward and backward");
    usp::check_inputs(*batch, in);
  }
  [[nodiscard]] std::uint64_t digest_of(const AttentionInputs& in, bool by_address) const;
  void agree_on(const AttentionInputs& in, std::uint64_t digest);
  void check_follows(const AttentionInputs& in) const;
  /// Whether what comes with a call lies where reading it costs nothing.
  [[nodiscard]] bool on_host() const { return memory.stream() == nullptr; }
  void place_inputs(Pass pass, const AttentionInputs& in, ConstView d_out);
  void check_capture(Pass pass) const;
  void run(Pass pass, const AttentionInputs& in, double* d_sink);
  void measure(Pass pass);
  void place_result(Pass pass, Tensor tensor, const View& target);
  void finish_result(Tensor tensor, const View& target);
};

AttentionOperator::AttentionOperator(const AttentionPlan& plan, Communicator& communicator,
                                     AttentionKernel& kernel, const OperatorOptions& options)
    : state_(std::make_unique<State>(plan, communicator, kernel, options)) {
  check_attention_plan(plan);
  require(kernel.rounds_results() || !rounds_once(plan),
          fmt::format("the plan's steps round their results (backend {}), the {} kernel keeps a wider state; "
                      "plan with --backend cpu, or run with --device cpu",
                      word_of(plan.backend), kernel.name()));
  require(kernel.wants_o() || plan.backend != Backend::cudnn,
          fmt::format("the plan is for cuDNN, whose backward needs no delta; the {} kernel does: plan with "
                      "another --backend",
                      kernel.name()));
  require(
      communicator.size() == plan.mesh.size(),
      fmt::format("the plan is for {} ranks, the communicator has {}; start as many ranks as the plan has",
                  plan.mesh.size(), communicator.size()));
  const AttentionShape& s = plan.shape;
  agree(communicator, {{"dtype", Digest().add(s.dtype).value()},
                       {"shape", Digest()
                                     .add(s.batch)
                                     .add(s.q_tokens)
                                     .add(s.kv_tokens)
                                     .add(s.query_heads)
                                     .add(s.kv_heads)
                                     .add(s.head_dim_qk)
                                     .add(s.head_dim_v)
                                     .value()},
                       {"layout", Digest().add(plan.layout).value()},
                       {"plan", digest(plan)}});
}

AttentionOperator::~AttentionOperator() = default;

void AttentionOperator::set_batch(const Documents& documents) {
  State& s = *state_;
  agree(s.communicator, {{"batch", digest(documents)}});
  AttentionPlan plan = s.plan;
  const auto tokens = [&](const std::vector<i64>& cu, i64 capacity, const char* what) {
    const i64 count = cu.empty() ? 0 : cu.back();
    if (count < 1 || count > capacity)
      throw InvalidInput({"batch", 0, what},
                         fmt::format("the batch has {} tokens, the plan has room for 1 to {}; plan for more",
                                     count, capacity));
    return count;
  };
  plan.shape.q_tokens = tokens(documents.cu_q, s.plan.shape.q_tokens, "cu_q");
  plan.shape.kv_tokens = tokens(documents.cu_k, s.plan.shape.kv_tokens, "cu_k");
  if (plan.score.block_tokens > 0 && documents.cu_q != documents.cu_k)
    throw InvalidInput({"batch", 0, "cu_k"}, "a block pattern needs queries and keys of the same tokens");
  s.runner[0].reset();
  s.runner[1].reset();
  s.have_forward = false;
  s.memory.synchronize();  // what is in flight reads the old buffers and slices
  s.kernel.forget();
  s.batch.reset();  // where the new one is refused, there is none
  auto batch = std::make_unique<Batch>(plan, documents, s.communicator.rank());
  if (!s.on_host())
    for (const Pass pass : {Pass::forward, Pass::backward})
      check_gpu_steps(batch->schedule(pass), plan.shape.batch);
  s.batch = std::move(batch);
  s.workspace->reserve(
      std::max(s.batch->workspace_bytes(Pass::forward), s.batch->workspace_bytes(Pass::backward)));
  s.saved->reserve(s.batch->saved_bytes());
  s.sums->reserve(s.batch->sums_bytes());
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const RankSchedule& schedule = s.batch->schedule(pass);
    s.runner[State::index(pass)].emplace(schedule, s.communicator, s.kernel, s.options);
    s.batch->place_own(pass, *s.runner[State::index(pass)], s.workspace->data(), s.saved->data());
    PassRecord& record = s.records[State::index(pass)];
    record = {};
    record.pass = pass;
    record.planned = planned_traffic(schedule, s.communicator.size());
    record.workspace_bytes = s.batch->workspace_bytes(pass);
    record.ticks.resize(schedule.ticks.size());
  }
  const auto home = [&](Tensor tensor, Side side) {
    return s.batch->tokens(Pass::forward,
                           s.buffer(Pass::forward, s.batch->input(Pass::forward, {tensor, BufferSlot::home})),
                           side);
  };
  s.q_tokens = home(Tensor::q, Side::q);
  s.kv_tokens = home(Tensor::k, Side::k);
  s.inputs_agreed = s.have_forward = s.warm[0] = s.warm[1] = false;
}

/// Of the content; with `by_address`, of where it lies: reading a GPU's memory would hold up its stream.
std::uint64_t AttentionOperator::State::digest_of(const AttentionInputs& in, bool by_address) const {
  Digest d;
  const auto add = [&](const void* values, i64 bytes) {
    if (values == nullptr) return;
    if (by_address) {
      d.add(reinterpret_cast<std::uintptr_t>(values));
      return;
    }
    if (on_host()) {
      d.bytes({static_cast<const char*>(values), static_cast<std::size_t>(bytes)});
      return;
    }
    std::string content(static_cast<std::size_t>(bytes), '\0');
    memory.to_host(content.data(), static_cast<const std::byte*>(values), bytes);
    memory.synchronize();
    d.bytes(content);
  };
  add(in.sink, plan.shape.query_heads * static_cast<i64>(sizeof(double)));
  add(in.alibi_slopes, plan.shape.query_heads * static_cast<i64>(sizeof(double)));
  if (in.blocks != nullptr)
    add(in.blocks->admitted, plan.shape.query_heads * in.blocks->rows * in.blocks->columns);
  d.add(plan.score.dropout != 0 ? in.dropout_seed : 0);
  return d.value();
}

void AttentionOperator::State::place_inputs(Pass pass, const AttentionInputs& in, ConstView d_out) {
  const auto place = [&](Tensor tensor, const ConstView& view) {
    const BufferId id = batch->input(pass, {tensor, BufferSlot::home});
    // Inputs are only read; one view type serves the buffers of a schedule.
    View target(const_cast<std::byte*>(view.data), view.type, view.batch, view.rows, view.heads, view.width);
    target.batch_stride = view.batch_stride, target.row_stride = view.row_stride,
    target.head_stride = view.head_stride;
    runner[index(pass)]->place(id, target);
  };
  place(Tensor::q, in.q);
  place(Tensor::k, in.k);
  place(Tensor::v, in.v);
  if (pass == Pass::forward) return;
  place(Tensor::d_o, d_out);
  if (batch->input(pass, {Tensor::o, BufferSlot::home}) >= 0) place(Tensor::o, out);
}

/// A graph holds what this rank's stream does, and nothing that its host thread says to others.
void AttentionOperator::State::check_capture(Pass pass) const {
  if (on_host() || !is_capturing(memory.stream())) return;
  const char* const name = pass == Pass::forward ? "forward" : "backward";
  require(communicator.capturable(),
          fmt::format("a CUDA graph cannot hold the exchanges of {}, whose ranks tell one another in every "
                      "call where their tensors lie; use NCCL on every axis, or capture around the call",
                      communicator.name()));
  require(warm[index(pass)], fmt::format("the first {} of a batch makes room and agrees with other ranks, "
                                         "which a CUDA graph cannot hold; run it once before the capture",
                                         name));
  require(!options.measure_workspace && !options.stream_times,
          "a captured call cannot measure itself; leave out measure_workspace and stream_times");
  require(plan.score.dropout == 0, "a replayed graph would drop the same pairs in every step");
}

void AttentionOperator::State::run(Pass pass, const AttentionInputs& in, double* d_sink) {
  PassRecord& record = records[index(pass)];
  if (options.measure_workspace) memory.set_bytes(workspace->data(), poison_byte, workspace->bytes());
  communicator.traffic().reset(static_cast<int>(record.ticks.size()), communicator.size());
  terms = score_terms(plan, in);
  StepInputs inputs;
  inputs.group = plan.shape.query_heads / plan.shape.kv_heads;
  inputs.terms = &terms;
  inputs.sink = in.sink;
  inputs.d_sink = d_sink;
  runner[index(pass)]->run(inputs, calls++, record.ticks);
  record.executed = communicator.traffic();
  warm[index(pass)] = true;
  if (options.measure_workspace) measure(pass);
}

void AttentionOperator::State::measure(Pass pass) {
  std::vector<unsigned char> content(static_cast<std::size_t>(workspace->bytes()));
  memory.to_host(content.data(), workspace->data(), workspace->bytes());
  memory.synchronize();
  i64 end = workspace->bytes();
  while (end > 0 && content[static_cast<std::size_t>(end - 1)] == poison_byte) --end;
  records[index(pass)].touched_bytes = end;
}

void AttentionOperator::forward(const AttentionInputs& in, View out, View lse) {
  State& s = *state_;
  s.check_inputs(in);
  s.check_capture(Pass::forward);
  check_results(*s.batch, in, out, lse);
  const std::uint64_t inputs = s.digest_of(in, !s.on_host());
  s.agree_on(in, inputs);
  s.have_forward = false;  // until this one has run to its end
  s.place_inputs(Pass::forward, in, {});
  s.runner[0]->place(s.batch->result(Pass::forward, {Tensor::o, BufferSlot::home}), out);
  if (s.plan.return_lse)
    s.runner[0]->place(s.batch->result(Pass::forward, {Tensor::lse, BufferSlot::home}), lse);
  s.out = out;
  s.run(Pass::forward, in, nullptr);
  s.forward_inputs = inputs;
  s.forward_q = Lies(in.q), s.forward_k = Lies(in.k), s.forward_v = Lies(in.v);
  s.have_forward = true;
}

/// What is the same on every rank is compared before each forward: on the host what it holds, on a GPU, where
/// reading would hold up the stream, the content of what is per head once a batch, and the seed always.
void AttentionOperator::State::agree_on(const AttentionInputs& in, std::uint64_t digest) {
  const bool copies = !plan.replicated_q.empty() || !plan.replicated_k.empty();
  const bool per_head = plan.sink || plan.score.alibi || plan.score.block_tokens > 0;
  if (on_host() && (!inputs_agreed || copies || per_head || plan.score.dropout != 0)) {
    const std::uint64_t tokens = Digest()
                                     .add(digest_of_rows(in.q, plan.replicated_q))
                                     .add(digest_of_rows(in.k, plan.replicated_k))
                                     .add(digest_of_rows(in.v, plan.replicated_k))
                                     .value();
    agree(communicator, {{"inputs", digest}, {"q, k, v of replicated tokens", tokens}});
  } else if (!inputs_agreed) {
    agree(communicator, {{"inputs", digest_of(in, false)}});
  } else if (plan.score.dropout != 0) {
    agree(communicator, {{"dropout_seed", in.dropout_seed}});
  }
  inputs_agreed = true;
}

void AttentionOperator::State::check_follows(const AttentionInputs& in) const {
  require(have_forward, "backward comes after forward of the same batch");
  const auto same = [](const ConstView& view, const Lies& forward, const char* name) {
    require(Lies(view) == forward,
            fmt::format("backward was given another {} than the last forward, whose state the operator "
                        "holds: gradients of one call with the state of another would be wrong; call "
                        "backward before the next forward, or use one operator for each call in flight",
                        name));
  };
  same(in.q, forward_q, "q");
  same(in.k, forward_k, "k");
  same(in.v, forward_v, "v");
  require(digest_of(in, !on_host()) == forward_inputs,
          "backward was given other sinks, slopes, blocks or seed than forward");
}

/// A gradient lands in the caller's tensor where that has the type of the sum.
void AttentionOperator::State::place_result(Pass pass, Tensor tensor, const View& target) {
  const BufferId id = batch->result(pass, {tensor, BufferSlot::home});
  const Buffer& b = buffer(pass, id);
  const bool direct = target.type == b.type;
  runner[index(pass)]->place(id,
                             direct ? target : batch->packed(b, sums->data() + batch->sum_offset(tensor)));
}

void AttentionOperator::State::finish_result(Tensor tensor, const View& target) {
  const BufferId id = batch->result(Pass::backward, {tensor, BufferSlot::home});
  const View sum = runner[1]->view(id);
  if (sum.data == target.data) return;
  memory.copy_region(sum, {{0, sum.rows}, sum.heads}, target, {{0, target.rows}, target.heads},
                     WriteMode::overwrite);
}

void AttentionOperator::backward(const AttentionInputs& in, ConstView d_out,
                                 const AttentionGradients& gradients) {
  State& s = *state_;
  s.check_inputs(in);
  s.check_capture(Pass::backward);
  s.check_follows(in);
  check_gradients(*s.batch, in, d_out, gradients, s.out);
  s.place_inputs(Pass::backward, in, d_out);
  s.place_result(Pass::backward, Tensor::dq, gradients.dq);
  s.place_result(Pass::backward, Tensor::dk, gradients.dk);
  s.place_result(Pass::backward, Tensor::dv, gradients.dv);
  s.run(Pass::backward, in, gradients.d_sink);
  s.finish_result(Tensor::dq, gradients.dq);
  s.finish_result(Tensor::dk, gradients.dk);
  s.finish_result(Tensor::dv, gradients.dv);
}

const std::vector<i64>& AttentionOperator::q_tokens() const {
  return state_->q_tokens;
}
const std::vector<i64>& AttentionOperator::kv_tokens() const {
  return state_->kv_tokens;
}
const PassRecord& AttentionOperator::record(Pass pass) const {
  return state_->records[State::index(pass)];
}
const RankSchedule& AttentionOperator::schedule(Pass pass) const {
  return state_->batch->schedule(pass);
}
i64 AttentionOperator::workspace_bytes() const {
  return state_->workspace->bytes();
}
i64 AttentionOperator::saved_bytes() const {
  return state_->saved->bytes();
}
i64 AttentionOperator::planned_memory_bytes(bool training) const {
  const Batch& batch = *state_->batch;
  std::vector<const RankSchedule*> schedules{&batch.schedule(Pass::forward)};
  if (training) schedules.push_back(&batch.schedule(Pass::backward));
  return std::max(batch.workspace_bytes(Pass::forward), batch.workspace_bytes(Pass::backward)) +
         batch.saved_bytes() + batch.sums_bytes() + kernel_scratch_bytes(batch.plan(), schedules);
}

ConstView AttentionOperator::row_lse() const {
  const BufferId id = state_->batch->input(Pass::backward, {Tensor::lse, BufferSlot::row});
  return state_->runner[1]->view(id);
}

std::vector<i64> AttentionOperator::row_tokens() const {
  const BufferId id = state_->batch->input(Pass::backward, {Tensor::lse, BufferSlot::row});
  return state_->batch->tokens(Pass::backward, state_->buffer(Pass::backward, id), Side::q);
}

}  // namespace usp
