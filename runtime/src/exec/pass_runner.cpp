// SPDX-License-Identifier: Apache-2.0
#include "pass_runner.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace usp {
namespace {

[[nodiscard]] const char* operation(Pass pass, Apply apply) {
  if (pass == Pass::forward) return "a forward exchange";
  return apply == Apply::add ? "the return of a gradient" : "a backward exchange";
}

}  // namespace

ByteBox byte_box(const View& view, Range rows, Range heads) {
  const i64 element = bytes_of(view.type), width = view.width;
  ByteBox box;
  box.data = view.at(0, rows.begin, heads.begin);
  const bool joined = view.head_stride == width;
  box.run_bytes = (joined ? heads.size() * width : width) * element;
  box.count[0] = rows.size(), box.stride[0] = view.row_stride * element;
  box.count[1] = view.batch, box.stride[1] = view.batch_stride * element;
  box.count[2] = joined ? 1 : heads.size(), box.stride[2] = view.head_stride * element;
  const bool whole_rows = box.count[1] == 1 && box.count[2] == 1 && box.stride[0] == box.run_bytes;
  if (whole_rows) {
    box.run_bytes *= box.count[0];
    box.count[0] = 1;
  }
  return box;
}

PassRunner::PassRunner(const RankSchedule& schedule, Communicator& communicator, AttentionKernel& kernel,
                       const OperatorOptions& options, const std::vector<OperationKernel>& operations)
    : schedule_(schedule),
      communicator_(communicator),
      kernel_(kernel),
      memory_(kernel.memory()),
      debug_nan_(options.debug_nan) {
  if (options.stream_times && memory_.stream() != nullptr) clock_.emplace(memory_.device(), memory_.stream());
  const std::size_t ticks = schedule.ticks.size(), transfers = schedule.transfers.size();
  views_.resize(schedule.buffers.size());
  begins_.resize(ticks);
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i)
    if (schedule.buffers[i].first >= 0)
      begins_[static_cast<std::size_t>(schedule.buffers[i].first)].push_back(static_cast<BufferId>(i));
  sends_due_.resize(ticks);
  self_send_.assign(transfers, -1);
  tickets_.assign(transfers, -1);
  box_begin_.resize(transfers);
  std::size_t boxes = 0, most_posts = 0;
  for (std::size_t i = 0; i < transfers; ++i) {
    const Transfer& t = schedule.transfers[i];
    box_begin_[i] = boxes;
    if (t.peer != schedule.rank) {
      boxes += t.stage >= 0 ? 1 : static_cast<std::size_t>(t.boxes.count);
      if (t.send) sends_due_[static_cast<std::size_t>(t.due)].push_back(static_cast<std::int32_t>(i));
    } else if (!t.send) {
      // A rank's send to itself stands before its receive in the same tick.
      for (std::size_t s = i; s-- > 0 && self_send_[i] < 0;)
        if (schedule.transfers[s].send && schedule.transfers[s].move == t.move &&
            schedule.transfers[s].peer == t.peer)
          self_send_[i] = static_cast<std::int32_t>(s);
      expects(self_send_[i] >= 0, "a rank receives from itself what it never sent");
    }
  }
  for (const Step& step : schedule.steps) {
    const auto kernel_of =
        std::find_if(operations.begin(), operations.end(),
                     [&](const OperationKernel& entry) { return entry.operation == step.operation; });
    expects(kernel_of != operations.end(), "an operation of the schedule has no kernel");
    step_kernels_.push_back(kernel_of->run);
  }
  for (const Tick& tick : schedule.ticks)
    most_posts = std::max(most_posts, static_cast<std::size_t>(tick.posts.count));
  byte_boxes_.resize(boxes);
  messages_.reserve(most_posts);
  posted_.reserve(most_posts);
  new_tickets_.resize(most_posts);
  communicator.reserve(static_cast<i64>(transfers), static_cast<i64>(boxes));
}

void PassRunner::run(const StepInputs& inputs, i64 call, std::vector<TickTimes>& times) {
  start_ = std::chrono::steady_clock::now();
  if (clock_) clock_->restart();
  inputs_ = inputs;
  times.resize(schedule_.ticks.size());
  const i64 first_tag = call << 20;  // a pass has far fewer transfers
  for (std::size_t t = 0; t < schedule_.ticks.size(); ++t) {
    char name[64];
    std::snprintf(name, sizeof name, "%s tick %zu", schedule_.pass == Pass::forward ? "forward" : "backward",
                  t);
    const NamedRange range(name);
    run_tick(t, first_tag, times[t]);
  }
  if (clock_) read_clock(times);
}

void PassRunner::run_tick(std::size_t t, i64 first_tag, TickTimes& times) {
  const Tick& tick = schedule_.ticks[t];
  times.begin_s = now();
  bind(static_cast<int>(t));
  post(tick);
  for (Message& m : messages_) m.tag += first_tag;
  communicator_.post(messages_.data(), static_cast<i64>(messages_.size()), new_tickets_.data());
  for (std::size_t i = 0; i < posted_.size(); ++i)
    tickets_[static_cast<std::size_t>(posted_[i])] = new_tickets_[i];
  times.posted_s = now();
  for (std::int32_t i = 0; i < tick.steps.count; ++i) compute(static_cast<std::size_t>(tick.steps.begin + i));
  times.computed_s = now();
  for (std::int32_t i = 0; i < tick.arrivals.count; ++i)
    arrive(schedule_.arrivals[static_cast<std::size_t>(tick.arrivals.begin + i)]);
  finish_sends(static_cast<int>(t));
  times.end_s = now();
}

/// Seconds since the pass began, on this thread; on a stream whose times are wanted, its next mark.
double PassRunner::now() {
  if (clock_) clock_->mark();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void PassRunner::read_clock(std::vector<TickTimes>& times) const {
  std::size_t mark = 0;
  for (TickTimes& t : times)
    for (double* at : {&t.begin_s, &t.posted_s, &t.computed_s, &t.end_s}) *at = clock_->at(++mark);
}

void PassRunner::bind(int tick) {
  for (const BufferId id : begins_[static_cast<std::size_t>(tick)]) {
    const Buffer& b = schedule_.buffers[static_cast<std::size_t>(id)];
    if (b.name.place == BufferSlot::stage || (b.fill == Fill::nan && !debug_nan_)) continue;
    memory_.fill(view(id), b.fill == Fill::zero ? 0 : std::numeric_limits<double>::quiet_NaN());
  }
}

/// Fills messages_ and posted_ with what starts in a tick; packs what flies in another type.
void PassRunner::post(const Tick& tick) {
  messages_.clear();
  posted_.clear();
  for (std::int32_t i = tick.posts.begin; i < tick.posts.begin + tick.posts.count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Transfer& t = schedule_.transfers[index];
    if (t.peer == schedule_.rank) continue;
    describe(t, index);
    Message m;
    m.peer = t.peer;
    m.send = t.send;
    m.tag = t.move;
    m.tick = t.start;
    m.operation = operation(schedule_.pass, t.apply);
    m.boxes = &byte_boxes_[box_begin_[index]];
    m.box_count = t.stage >= 0 ? 1 : t.boxes.count;
    messages_.push_back(m);
    posted_.push_back(i);
  }
}

void PassRunner::describe(const Transfer& t, std::size_t index) {
  ByteBox* out = &byte_boxes_[box_begin_[index]];
  if (t.stage >= 0) {
    *out = ByteBox{};
    out->data = view(t.stage).data;
    out->run_bytes = t.bytes;
    std::byte* payload = out->data;
    for (std::int32_t i = 0; t.send && i < t.boxes.count; ++i) {
      const Box& box = schedule_.boxes[static_cast<std::size_t>(t.boxes.begin + i)];
      payload = memory_.pack_box(view(box.buffer), {box.rows, box.heads}, t.wire, payload);
    }
    return;
  }
  for (std::int32_t i = 0; i < t.boxes.count; ++i) {
    const Box& box = schedule_.boxes[static_cast<std::size_t>(t.boxes.begin + i)];
    *out++ = byte_box(view(box.buffer), box.rows, box.heads);
  }
}

AttendScope PassRunner::scope(const Step& step) const {
  AttendScope s;
  s.query_heads = step.query_heads;
  s.group = inputs_.group;
  if (!step.operation->has_pairs) return s;
  s.slices = schedule_.slices.data() + step.slices.begin;
  s.slice_count = step.slices.count;
  s.terms = inputs_.terms;
  // A plan for another backend says nothing of what cuDNN would do with the step.
  if (schedule_.backend == Backend::cudnn) s.use = step.backend.use;
  s.progress = {[](void* communicator) { static_cast<Communicator*>(communicator)->progress(); },
                &communicator_};
  return s;
}

void PassRunner::compute(std::size_t index) {
  const Step& step = schedule_.steps[index];
  View views[tensor_count];
  for (std::size_t i = 0; i < tensor_count; ++i)
    if (step.buffers[i] >= 0) views[i] = view(step.buffers[i]);
  step_kernels_[index](kernel_, {&step, views, scope(step), inputs_.sink, inputs_.d_sink});
}

void PassRunner::arrive(std::int32_t index) {
  const Transfer& t = schedule_.transfers[static_cast<std::size_t>(index)];
  if (t.peer == schedule_.rank) return copy_to_self(t);
  communicator_.wait(tickets_[static_cast<std::size_t>(index)]);
  if (t.stage < 0) return;
  const std::byte* payload = view(t.stage).data;
  for (std::int32_t i = 0; i < t.boxes.count; ++i) {
    const Box& box = schedule_.boxes[static_cast<std::size_t>(t.boxes.begin + i)];
    payload = memory_.unpack_box(payload, t.wire, view(box.buffer), {box.rows, box.heads}, land(t));
  }
}

/// Both ends list the same rows in the same order, cut where their buffers are cut.
void PassRunner::copy_to_self(const Transfer& receive) {
  const auto index = static_cast<std::size_t>(&receive - schedule_.transfers.data());
  const Transfer& send = schedule_.transfers[static_cast<std::size_t>(self_send_[index])];
  const Box* from = &schedule_.boxes[static_cast<std::size_t>(send.boxes.begin)];
  const Box* to = &schedule_.boxes[static_cast<std::size_t>(receive.boxes.begin)];
  const Box* const to_end = to + receive.boxes.count;
  i64 from_row = from->rows.begin, to_row = to->rows.begin;
  while (to != to_end) {
    const i64 rows = std::min(from->rows.end - from_row, to->rows.end - to_row);
    memory_.copy_box(view(from->buffer), {{from_row, from_row + rows}, from->heads}, view(to->buffer),
                     {{to_row, to_row + rows}, to->heads}, land(receive));
    from_row += rows, to_row += rows;
    if (to_row == to->rows.end && ++to != to_end) to_row = to->rows.begin;
    if (from_row == from->rows.end && to != to_end) from_row = (++from)->rows.begin;
  }
}

void PassRunner::finish_sends(int tick) {
  for (const std::int32_t i : sends_due_[static_cast<std::size_t>(tick)])
    communicator_.wait(tickets_[static_cast<std::size_t>(i)]);
}

}  // namespace usp
