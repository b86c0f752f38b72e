// SPDX-License-Identifier: Apache-2.0
#include "call_workspace.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace usp {
namespace {

/// The highest byte of no number that an attention call computes: fp16 NaN, beyond 1e37 in the other types.
constexpr unsigned char poison_byte = 0x7e;

/// Of a part of the workspace, in both passes; in forward alone where nothing else runs.
[[nodiscard]] i64 bytes_of_passes(const Prepared& prepared, i64 (Prepared::*bytes)(Pass) const,
                                  bool forward_only) {
  const i64 forward = (prepared.*bytes)(Pass::forward);
  return forward_only ? forward : std::max(forward, (prepared.*bytes)(Pass::backward));
}

struct Gradient {
  Tensor tensor;
  kernels::View target;
};
[[nodiscard]] std::array<Gradient, 3> gradients_of(const AttentionGradients& to) {
  return {{{Tensor::dq, to.dq}, {Tensor::dk, to.dk}, {Tensor::dv, to.dv}}};
}

[[nodiscard]] schedule::BufferId sum_of(const Prepared& prepared, Tensor tensor) {
  return prepared.result(Pass::backward, {tensor, BufferSlot::home});
}

[[nodiscard]] i64 touched(kernels::Memory& memory, const kernels::Arena& arena, i64 bytes) {
  std::vector<unsigned char> content(static_cast<std::size_t>(bytes));
  memory.to_host(content.data(), arena.data(), bytes);
  memory.synchronize();
  while (bytes > 0 && content[static_cast<std::size_t>(bytes - 1)] == poison_byte) --bytes;
  return bytes;
}

}  // namespace

void place_packed(const Prepared& prepared, Pass pass, PassRunner& runner, std::byte* base,
                  i64 (Prepared::*offset_of)(Pass, schedule::BufferId) const) {
  const std::vector<schedule::Buffer>& buffers = prepared.schedule(pass).buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto id = static_cast<schedule::BufferId>(i);
    const i64 offset = (prepared.*offset_of)(pass, id);
    if (offset >= 0) runner.place(id, prepared.packed(buffers[i], base + offset));
  }
}

CallWorkspace::CallWorkspace(comm::DataPlane& data_plane, kernels::Memory& memory)
    : memory_(memory),
      reached_(data_plane.peer_arena(memory)),
      own_(memory.make_scratch()),
      sums_(memory.make_scratch()) {}

void CallWorkspace::reserve(const Prepared& prepared, bool forward_only, bool is_new) {
  const i64 reached = bytes_of_passes(prepared, &Prepared::reached_bytes, forward_only),
            own = bytes_of_passes(prepared, &Prepared::own_bytes, forward_only);
  const i64 sums = forward_only ? 0 : prepared.sums_bytes();
  const bool joins = reached_ != nullptr && is_new;
  if (!joins && own_->bytes() >= own && sums_->bytes() >= sums) return;
  memory_.synchronize();  // work in flight reads the workspace
  if (joins) {
    if (reached_->bytes() < reached) memory_.release_unused();
    reached_->reserve(reached);  // grows on all ranks at once
  }
  own_->reserve(own);
  sums_->reserve(sums);
}

i64 CallWorkspace::bytes() const {
  return (reached_ == nullptr ? 0 : reached_->bytes()) + own_->bytes() + sums_->bytes();
}

void CallWorkspace::place_reached(const Prepared& prepared, Pass pass, PassRunner& runner) const {
  if (reached_ != nullptr)
    place_packed(prepared, pass, runner, reached_->data(), &Prepared::reached_offset);
}

void CallWorkspace::place(const Prepared& prepared, Pass pass, PassRunner& runner) const {
  place_reached(prepared, pass, runner);
  place_packed(prepared, pass, runner, own_->data(), &Prepared::own_offset);
}

void CallWorkspace::place_gradients(const Prepared& prepared, PassRunner& runner,
                                    const AttentionGradients& to) {
  const std::vector<schedule::Buffer>& buffers = prepared.schedule(Pass::backward).buffers;
  std::vector<std::pair<schedule::BufferId, i64>> summed;  // and where its sum begins
  i64 bytes = 0;
  for (const auto& [tensor, target] : gradients_of(to)) {
    const schedule::BufferId id = sum_of(prepared, tensor);
    const schedule::Buffer& sum = buffers[static_cast<std::size_t>(id)];
    runner.place(id, target);
    if (target.type == sum.type) continue;
    summed.emplace_back(id, bytes);
    bytes += align_buffer(schedule::bytes_of(sum, prepared.plan().shape.batch));
  }
  if (summed.empty()) return;
  if (sums_->bytes() < bytes) memory_.synchronize();  // work in flight reads them
  sums_->reserve(bytes);
  std::byte* const base = sums_->data();
  for (const auto& [id, begin] : summed)
    runner.place(id, prepared.packed(buffers[static_cast<std::size_t>(id)], base + begin));
}

void CallWorkspace::finish_gradients(const Prepared& prepared, PassRunner& runner,
                                     const AttentionGradients& to) const {
  for (const auto& [tensor, target] : gradients_of(to)) {
    const kernels::View sum = runner.view(sum_of(prepared, tensor));
    if (sum.data == target.data) continue;
    memory_.copy_region(sum, {{0, sum.rows}, sum.heads}, target, {{0, target.rows}, target.heads},
                        WriteMode::overwrite);
  }
}

void CallWorkspace::poison(const Prepared& prepared, Pass pass) {
  if (reached_ != nullptr)
    memory_.set_bytes(reached_->data(), poison_byte, prepared.reached_bytes(pass));
  memory_.set_bytes(own_->data(), poison_byte, prepared.own_bytes(pass));
}

i64 CallWorkspace::touched_bytes(const Prepared& prepared, Pass pass) {
  const i64 own = touched(memory_, *own_, prepared.own_bytes(pass));
  return reached_ == nullptr ? own : own + touched(memory_, *reached_, prepared.reached_bytes(pass));
}

}  // namespace usp
