// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/attention.hpp"

#include "require.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/schedule/kernel_scratch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp {
namespace {

/// Where a tensor lies and how: whether two calls were given the same one.
struct Location {
  Location() = default;
  explicit Location(const kernels::ConstView& v)
      : data(v.data), batch_stride(v.batch_stride), row_stride(v.row_stride), head_stride(v.head_stride) {}
  const std::byte* data = nullptr;
  i64 batch_stride = 0, row_stride = 0, head_stride = 0;
  bool operator==(const Location&) const = default;
};

}  // namespace

struct AttentionOperator::State {
  template <class Ranks>
  State(AttentionPlan p, Ranks& ranks, kernels::AttentionKernel& kernel, const ExecutorOptions& options)
      : plan(std::move(p)), executor(ranks, kernel, options), saved(kernel.memory()) {}

  AttentionPlan plan;
  Executor executor;
  SavedState saved;
  std::shared_ptr<const Prepared> prepared;  ///< null: no batch
  Location forward_q, forward_k, forward_v;
  kernels::ConstView out;  ///< of the last forward
  const std::vector<i64> no_tokens;

  [[nodiscard]] const Prepared& batch() const {
    require(prepared != nullptr, "the operator has no batch: set_batch comes first");
    return *prepared;
  }
  void check_follows(const AttentionInputs& in) const;
};

AttentionOperator::AttentionOperator(const AttentionPlan& plan, comm::Communicator& communicator,
                                     kernels::AttentionKernel& kernel, const ExecutorOptions& options)
    : state_(std::make_unique<State>(plan, communicator, kernel, options)) {
  state_->executor.admit(plan);
}

AttentionOperator::AttentionOperator(const AttentionPlan& plan, comm::DataPlane& data_plane,
                                     kernels::AttentionKernel& kernel, const ExecutorOptions& options)
    : state_(std::make_unique<State>(plan, data_plane, kernel, options)) {
  state_->executor.admit(plan);
}

AttentionOperator::~AttentionOperator() = default;

void AttentionOperator::set_batch(const Documents& documents) {
  State& s = *state_;
  comm::Communicator& communicator = s.executor.communicator();
  comm::agree(communicator, {{"batch", digest(documents)}});
  s.saved.drop();
  s.prepared.reset();  // where the new one is refused, there is none
  auto prepared = std::make_shared<const Prepared>(s.plan, documents, communicator.rank(),
                                                   s.executor.data_plane().reach());
  s.executor.reserve(prepared);
  s.prepared = std::move(prepared);
}

void AttentionOperator::forward(const AttentionInputs& in, kernels::View out, kernels::View lse) {
  State& s = *state_;
  require(s.prepared != nullptr, "set_batch comes before forward and backward");
  s.executor.forward(s.prepared, in, out, lse, s.saved);
  s.forward_q = Location(in.q), s.forward_k = Location(in.k), s.forward_v = Location(in.v);
  s.out = out;
}

void AttentionOperator::State::check_follows(const AttentionInputs& in) const {
  require(prepared != nullptr, "set_batch comes before forward and backward");
  require(saved.ready(), "backward comes after forward of the same batch");
  const auto same = [](const kernels::ConstView& view, const Location& forward, const char* name) {
    require(Location(view) == forward,
            fmt::format("backward was given another {} than the last forward, whose state the operator "
                        "holds: gradients of one call with the state of another would be wrong; call "
                        "backward before the next forward, or use an Executor and a SavedState for each call "
                        "in flight",
                        name));
  };
  same(in.q, forward_q, "q");
  same(in.k, forward_k, "k");
  same(in.v, forward_v, "v");
}

void AttentionOperator::backward(const AttentionInputs& in, kernels::ConstView d_out,
                                 const AttentionGradients& gradients) {
  State& s = *state_;
  s.check_follows(in);
  s.executor.backward(s.prepared, in, s.out, d_out, gradients, s.saved);
  s.saved.retain();
}

const std::vector<i64>& AttentionOperator::q_tokens() const {
  return state_->prepared == nullptr ? state_->no_tokens : state_->prepared->q_tokens();
}
const std::vector<i64>& AttentionOperator::kv_tokens() const {
  return state_->prepared == nullptr ? state_->no_tokens : state_->prepared->kv_tokens();
}
const PassRecord& AttentionOperator::record(Pass pass) const {
  return state_->executor.record(state_->batch(), pass);
}
const schedule::RankSchedule& AttentionOperator::schedule(Pass pass) const {
  return state_->batch().schedule(pass);
}
i64 AttentionOperator::workspace_bytes() const {
  return state_->executor.workspace_bytes();
}
i64 AttentionOperator::saved_bytes() const {
  return state_->saved.bytes();
}
i64 AttentionOperator::planned_memory_bytes(bool training) const {
  const Prepared& prepared = state_->batch();
  std::vector<const schedule::RankSchedule*> schedules{&prepared.schedule(Pass::forward)};
  if (training) schedules.push_back(&prepared.schedule(Pass::backward));
  const i64 scratch =
      training ? prepared.workspace_bytes() + prepared.sums_bytes() : prepared.workspace_bytes(Pass::forward);
  return scratch + prepared.saved_bytes() + schedule::kernel_scratch_bytes(prepared.plan(), schedules);
}

kernels::ConstView AttentionOperator::row_lse() const {
  const Prepared& prepared = state_->batch();
  const schedule::BufferId id = prepared.input(Pass::backward, {Tensor::lse, BufferSlot::row});
  const schedule::Buffer& buffer = prepared.schedule(Pass::backward).buffers[static_cast<std::size_t>(id)];
  return prepared.packed(buffer, state_->saved.data() + prepared.saved_offset(Pass::backward, id));
}

std::vector<i64> AttentionOperator::row_tokens() const {
  const Prepared& prepared = state_->batch();
  const schedule::BufferId id = prepared.input(Pass::backward, {Tensor::lse, BufferSlot::row});
  return prepared.tokens(Pass::backward,
                         prepared.schedule(Pass::backward).buffers[static_cast<std::size_t>(id)],
                         schedule::Side::q);
}

}  // namespace usp
