// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/prepared.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp {
namespace {

/// Outlives the forward pass, or stands before the backward one, and is not the caller's.
[[nodiscard]] bool is_saved(const schedule::RankSchedule& schedule, const schedule::Buffer& b) {
  if (b.name.place == BufferSlot::home) return false;
  return schedule.pass == Pass::forward ? b.last == static_cast<std::int32_t>(schedule.ticks.size())
                                        : b.first < 0;
}

/// A plan is made for a capacity of tokens; a batch has as many or fewer.
[[nodiscard]] AttentionPlan plan_of_batch(AttentionPlan plan, const Documents& documents) {
  const auto tokens = [](const std::vector<i64>& cu, i64 capacity, const char* what) {
    const i64 count = cu.empty() ? 0 : cu.back();
    if (count < 1 || count > capacity)
      throw InvalidInput({"batch", 0, what},
                         fmt::format("the batch has {} tokens, the plan has room for 1 to {}; plan for more",
                                     count, capacity));
    return count;
  };
  plan.shape.q_tokens = tokens(documents.cu_q, plan.shape.q_tokens, "cu_q");
  plan.shape.kv_tokens = tokens(documents.cu_k, plan.shape.kv_tokens, "cu_k");
  if (plan.score.block_tokens > 0 && documents.cu_q != documents.cu_k)
    throw InvalidInput({"batch", 0, "cu_k"}, "a block pattern needs queries and keys of the same tokens");
  return plan;
}

}  // namespace

schedule::CompactSchedule schedule_of(const schedule::TokenMap& geometry) {
  schedule::CompactSchedule compact;
  schedule::generate(geometry.plan(), geometry.heads().shared_kv(), compact);
  return compact;
}

Prepared::Prepared(const AttentionPlan& plan, const Documents& documents, int rank, schedule::PeerReach reach)
    : reach_(reach) {
  check_attention_plan(plan);
  geometry_ = std::make_shared<const schedule::TokenMap>(plan_of_batch(plan, documents), documents);
  expand_passes(schedule_of(*geometry_), rank);
  set_keys(plan);
}

Prepared::Prepared(std::shared_ptr<const schedule::TokenMap> geometry,
                   const schedule::CompactSchedule& compact, int rank, schedule::PeerReach reach)
    : geometry_(std::move(geometry)), reach_(reach) {
  expand_passes(compact, rank);
  set_keys(plan());
}

void Prepared::set_keys(const AttentionPlan& plan) {
  plan_key_ = digest(plan);
  call_key_ = Digest().add(plan_key_).add(digest(geometry_->documents())).value();
}

void Prepared::expand_passes(const schedule::CompactSchedule& compact, int rank) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Part& p = parts_[pass == Pass::forward ? 0 : 1];
    p.schedule = schedule::expand(*geometry_, compact, rank, pass, reach_);
    const auto pack = [&](schedule::WorkspacePart part) {
      return schedule::pack_workspace(p.schedule, plan().shape.batch, part);
    };
    const bool in_parts = reach_ == schedule::PeerReach::workspace;
    p.own = pack(in_parts ? schedule::WorkspacePart::own : schedule::WorkspacePart::all);
    if (in_parts)
      p.reached = pack(schedule::WorkspacePart::reached);
    else
      p.reached.offset.assign(p.schedule.buffers.size(), -1);
  }
  lay_out_saved();
  count_sums();
  q_tokens_ = home_tokens(Tensor::q, schedule::Side::q);
  kv_tokens_ = home_tokens(Tensor::k, schedule::Side::k);
}

void Prepared::lay_out_saved() {
  const std::vector<schedule::Buffer>& saved = parts_[0].schedule.buffers;
  for (Part& p : parts_) p.saved_offset.assign(p.schedule.buffers.size(), -1);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (!is_saved(parts_[0].schedule, saved[i])) continue;
    parts_[0].saved_offset[i] = saved_bytes_;
    const std::vector<schedule::Buffer>& readers = parts_[1].schedule.buffers;
    for (std::size_t j = 0; j < readers.size(); ++j)
      if (is_saved(parts_[1].schedule, readers[j]) && readers[j].name == saved[i].name)
        parts_[1].saved_offset[j] = saved_bytes_;
    saved_bytes_ += align_buffer(schedule::bytes_of(saved[i], plan().shape.batch));
  }
  for (std::size_t j = 0; j < parts_[1].schedule.buffers.size(); ++j)
    expects(!is_saved(parts_[1].schedule, parts_[1].schedule.buffers[j]) || parts_[1].saved_offset[j] >= 0,
            "backward reads what forward did not save");
}

void Prepared::count_sums() {
  for (const Tensor tensor : {Tensor::dq, Tensor::dk, Tensor::dv}) {
    const schedule::BufferId id = result(Pass::backward, {tensor, BufferSlot::home});
    if (id < 0) continue;
    const schedule::Buffer& sum = schedule(Pass::backward).buffers[static_cast<std::size_t>(id)];
    if (sum.type != plan().shape.dtype)
      sums_bytes_ += align_buffer(schedule::bytes_of(sum, plan().shape.batch));
  }
}

schedule::BufferId Prepared::input(Pass pass, BufferName name) const {
  const std::vector<schedule::Buffer>& buffers = schedule(pass).buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].first < 0 && buffers[i].name == name) return static_cast<schedule::BufferId>(i);
  return -1;
}

schedule::BufferId Prepared::result(Pass pass, BufferName name) const {
  const schedule::RankSchedule& s = schedule(pass);
  for (std::size_t i = s.buffers.size(); i-- > 0;)
    if (s.buffers[i].first >= 0 && s.buffers[i].name == name &&
        s.buffers[i].last == static_cast<std::int32_t>(s.ticks.size()))
      return static_cast<schedule::BufferId>(i);
  return -1;
}

kernels::View Prepared::packed(const schedule::Buffer& b, std::byte* at) const {
  return {at, b.type, plan().shape.batch, b.rows, b.heads, b.width};
}

i64 Prepared::workspace_bytes() const {
  return std::max(reached_bytes(Pass::forward), reached_bytes(Pass::backward)) +
         std::max(own_bytes(Pass::forward), own_bytes(Pass::backward));
}

bool Prepared::backward_reads(Tensor tensor) const {
  const schedule::BufferId id = input(Pass::backward, {tensor, BufferSlot::home});
  if (id < 0) return false;
  const schedule::RankSchedule& s = schedule(Pass::backward);
  const auto of_buffer = [&](const schedule::BufferRegion& region) { return region.buffer == id; };
  return std::any_of(s.regions.begin(), s.regions.end(), of_buffer) ||
         std::any_of(s.steps.begin(), s.steps.end(),
                     [&](const schedule::Step& step) { return step[tensor] == id; });
}

i64 Prepared::saved_offset(Pass pass, schedule::BufferId id) const {
  return part(pass).saved_offset[static_cast<std::size_t>(id)];
}

i64 Prepared::reached_offset(Pass pass, schedule::BufferId id) const {
  return part(pass).reached.offset[static_cast<std::size_t>(id)];
}

i64 Prepared::own_offset(Pass pass, schedule::BufferId id) const {
  return part(pass).own.offset[static_cast<std::size_t>(id)];
}

std::vector<i64> Prepared::home_tokens(Tensor tensor, schedule::Side side) const {
  const schedule::BufferId id = input(Pass::forward, {tensor, BufferSlot::home});
  return tokens(Pass::forward, schedule(Pass::forward).buffers[static_cast<std::size_t>(id)], side);
}

std::vector<i64> Prepared::tokens(Pass pass, const schedule::Buffer& buffer, schedule::Side side) const {
  std::vector<i64> out(static_cast<std::size_t>(buffer.rows));
  const schedule::RankSchedule& s = schedule(pass);
  for (std::int32_t i = buffer.pieces.begin; i < buffer.pieces.begin + buffer.pieces.count; ++i) {
    const schedule::Piece& piece = s.pieces[static_cast<std::size_t>(i)];
    for (const Run& run : geometry_->layout(side).tokens_of(piece.ring_row, piece.slots))
      for (i64 n = 0; n < run.count; ++n)
        out[static_cast<std::size_t>(piece.row + run.slot + n)] = run.first + n * run.step;
  }
  return out;
}

}  // namespace usp
