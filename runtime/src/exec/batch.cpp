// SPDX-License-Identifier: Apache-2.0
#include "batch.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <utility>

namespace usp {
namespace {

constexpr i64 alignment = 256;

[[nodiscard]] i64 align(i64 bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Outlives the forward pass, or stands before the backward one, and is not the caller's.
[[nodiscard]] bool is_saved(const RankSchedule& schedule, const Buffer& b) {
  if (b.name.place == BufferSlot::home) return false;
  return schedule.pass == Pass::forward ? b.last == static_cast<std::int32_t>(schedule.ticks.size())
                                        : b.first < 0;
}

}  // namespace

CompactSchedule schedule_of(const TokenMap& geometry) {
  CompactSchedule compact;
  generate(geometry.plan(), geometry.heads().shared_kv(), compact);
  return compact;
}

Batch::Batch(const std::shared_ptr<const TokenMap>& geometry, int rank)
    : Batch(geometry, schedule_of(*geometry), rank) {}

Batch::Batch(const AttentionPlan& plan, const Documents& documents, int rank)
    : Batch(std::make_shared<const TokenMap>(plan, documents), rank) {}

Batch::Batch(std::shared_ptr<const TokenMap> geometry, const CompactSchedule& compact, int rank)
    : geometry_(std::move(geometry)) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Part& p = parts_[pass == Pass::forward ? 0 : 1];
    p.schedule = expand(*geometry_, compact, rank, pass);
    p.workspace = pack_workspace(p.schedule, plan().shape.batch);
  }
  lay_out_saved();
  lay_out_sums();
}

void Batch::lay_out_saved() {
  const std::vector<Buffer>& saved = parts_[0].schedule.buffers;
  for (Part& p : parts_) p.saved_offset.assign(p.schedule.buffers.size(), -1);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (!is_saved(parts_[0].schedule, saved[i])) continue;
    parts_[0].saved_offset[i] = saved_bytes_;
    const std::vector<Buffer>& readers = parts_[1].schedule.buffers;
    for (std::size_t j = 0; j < readers.size(); ++j)
      if (is_saved(parts_[1].schedule, readers[j]) && readers[j].name == saved[i].name)
        parts_[1].saved_offset[j] = saved_bytes_;
    saved_bytes_ += align(bytes_of(saved[i], plan().shape.batch));
  }
  for (std::size_t j = 0; j < parts_[1].schedule.buffers.size(); ++j)
    expects(!is_saved(parts_[1].schedule, parts_[1].schedule.buffers[j]) || parts_[1].saved_offset[j] >= 0,
            "backward reads what forward did not save");
}

void Batch::lay_out_sums() {
  sum_offset_.fill(-1);
  for (const Tensor tensor : {Tensor::dq, Tensor::dk, Tensor::dv}) {
    const BufferId id = result(Pass::backward, {tensor, BufferSlot::home});
    if (id < 0) continue;
    sum_offset_[static_cast<std::size_t>(tensor)] = sums_bytes_;
    sums_bytes_ +=
        align(bytes_of(schedule(Pass::backward).buffers[static_cast<std::size_t>(id)], plan().shape.batch));
  }
}

BufferId Batch::input(Pass pass, BufferName name) const {
  const std::vector<Buffer>& buffers = schedule(pass).buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].first < 0 && buffers[i].name == name) return static_cast<BufferId>(i);
  return -1;
}

BufferId Batch::result(Pass pass, BufferName name) const {
  const RankSchedule& s = schedule(pass);
  for (std::size_t i = s.buffers.size(); i-- > 0;)
    if (s.buffers[i].first >= 0 && s.buffers[i].name == name &&
        s.buffers[i].last == static_cast<std::int32_t>(s.ticks.size()))
      return static_cast<BufferId>(i);
  return -1;
}

View Batch::packed(const Buffer& b, std::byte* at) const {
  return {at, b.type, plan().shape.batch, b.rows, b.heads, b.width};
}

void Batch::place_own(Pass pass, PassRunner& runner, std::byte* workspace, std::byte* saved) const {
  const Part& p = part(pass);
  for (std::size_t i = 0; i < p.schedule.buffers.size(); ++i) {
    const Buffer& b = p.schedule.buffers[i];
    if (p.saved_offset[i] >= 0)
      runner.place(static_cast<BufferId>(i), packed(b, saved + p.saved_offset[i]));
    else if (p.workspace.offset[i] >= 0)
      runner.place(static_cast<BufferId>(i), packed(b, workspace + p.workspace.offset[i]));
  }
}

std::vector<i64> Batch::tokens(Pass pass, const Buffer& buffer, Side side) const {
  std::vector<i64> out(static_cast<std::size_t>(buffer.rows));
  const RankSchedule& s = schedule(pass);
  for (std::int32_t i = buffer.pieces.begin; i < buffer.pieces.begin + buffer.pieces.count; ++i) {
    const Piece& piece = s.pieces[static_cast<std::size_t>(i)];
    for (const Run& run : geometry_->layout(side).tokens_of(piece.ring_row, piece.slots))
      for (i64 n = 0; n < run.count; ++n)
        out[static_cast<std::size_t>(piece.row + run.slot + n)] = run.first + n * run.step;
  }
  return out;
}

}  // namespace usp
