// SPDX-License-Identifier: Apache-2.0
#include "pass_runner.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace usp {
namespace {

[[nodiscard]] const char* operation(Pass pass, WriteMode mode) {
  if (pass == Pass::forward) return "a forward exchange";
  return mode == WriteMode::accumulate ? "the return of a gradient" : "a backward exchange";
}

}  // namespace

comm::StridedBytes byte_region(const kernels::View& view, Range rows, Range heads) {
  const i64 element = bytes_of(view.type), width = view.width;
  comm::StridedBytes region;
  region.data = view.at(0, rows.begin, heads.begin);
  const bool joined = view.head_stride == width;
  region.run_bytes = (joined ? heads.size() * width : width) * element;
  region.count[0] = rows.size(), region.stride[0] = view.row_stride * element;
  region.count[1] = view.batch, region.stride[1] = view.batch_stride * element;
  region.count[2] = joined ? 1 : heads.size(), region.stride[2] = view.head_stride * element;
  const bool whole_rows =
      region.count[1] == 1 && region.count[2] == 1 && region.stride[0] == region.run_bytes;
  if (whole_rows) {
    region.run_bytes *= region.count[0];
    region.count[0] = 1;
  }
  return region;
}

PassRunner::PassRunner(const schedule::RankSchedule& schedule, comm::Communicator& communicator,
                       kernels::AttentionKernel& kernel, const ExecutorOptions& options,
                       const std::vector<OperationKernel>& operations)
    : schedule_(schedule),
      communicator_(communicator),
      kernel_(kernel),
      memory_(kernel.memory()),
      debug_nan_(options.debug_nan),
      progress_(options.progress) {
  if (options.stream_times && memory_.stream() != nullptr) clock_.emplace(*memory_.call_stream());
  const std::size_t ticks = schedule.ticks.size(), transfers = schedule.transfers.size();
  views_.resize(schedule.buffers.size());
  begins_.resize(ticks);
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i)
    if (schedule.buffers[i].first >= 0)
      begins_[static_cast<std::size_t>(schedule.buffers[i].first)].push_back(
          static_cast<schedule::BufferId>(i));
  sends_due_.resize(ticks);
  self_send_.assign(transfers, -1);
  tickets_.assign(transfers, -1);
  region_begin_.resize(transfers);
  std::size_t regions = 0, max_posts = 0;
  for (std::size_t i = 0; i < transfers; ++i) {
    const schedule::Transfer& t = schedule.transfers[i];
    region_begin_[i] = regions;
    if (t.peer != schedule.rank) {
      regions += t.stage >= 0 ? 1 : static_cast<std::size_t>(t.regions.count);
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
  for (const schedule::Step& step : schedule.steps) {
    const auto kernel_of =
        std::find_if(operations.begin(), operations.end(),
                     [&](const OperationKernel& entry) { return entry.operation == step.operation; });
    expects(kernel_of != operations.end(), "an operation of the schedule has no kernel");
    step_kernels_.push_back(kernel_of->prepare);
  }
  prepared_.resize(schedule.steps.size());
  for (const schedule::Tick& tick : schedule.ticks)
    max_posts = std::max(max_posts, static_cast<std::size_t>(tick.posts.count));
  byte_regions_.resize(regions);
  messages_.reserve(max_posts);
  posted_.reserve(max_posts);
  new_tickets_.resize(max_posts);
  communicator.reserve(static_cast<i64>(transfers), static_cast<i64>(regions));
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
    const device::NamedRange range(name);
    tick_ = static_cast<std::int64_t>(t);
    tell_progress();
    run_tick(t, first_tag, times[t]);
  }
  if (clock_) read_clock(times);
}

void PassRunner::run_tick(std::size_t t, i64 first_tag, TickTimes& times) {
  const schedule::Tick& tick = schedule_.ticks[t];
  times.begin_s = now();
  bind(static_cast<int>(t));
  post(tick);
  for (comm::Message& m : messages_) m.tag += first_tag;
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
  for (const schedule::BufferId id : begins_[static_cast<std::size_t>(tick)]) {
    const schedule::Buffer& b = schedule_.buffers[static_cast<std::size_t>(id)];
    if (b.name.place == BufferSlot::stage || (b.fill == schedule::Fill::nan && !debug_nan_)) continue;
    memory_.fill(view(id), b.fill == schedule::Fill::zero ? 0 : std::numeric_limits<double>::quiet_NaN());
  }
}

/// Fills messages_ and posted_ with what starts in a tick; packs what flies in another type.
void PassRunner::post(const schedule::Tick& tick) {
  messages_.clear();
  posted_.clear();
  for (std::int32_t i = tick.posts.begin; i < tick.posts.begin + tick.posts.count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const schedule::Transfer& t = schedule_.transfers[index];
    if (t.peer == schedule_.rank) continue;
    describe(t, index);
    comm::Message m;
    m.peer = t.peer;
    m.send = t.send;
    m.push = t.push;
    m.tag = t.move;
    m.tick = t.start;
    m.operation = operation(schedule_.pass, t.write_mode);
    m.regions = &byte_regions_[region_begin_[index]];
    m.region_count = t.stage >= 0 ? 1 : t.regions.count;
    messages_.push_back(m);
    posted_.push_back(i);
  }
}

void PassRunner::describe(const schedule::Transfer& t, std::size_t index) {
  comm::StridedBytes* out = &byte_regions_[region_begin_[index]];
  if (t.stage >= 0) {
    *out = comm::StridedBytes{};
    out->data = view(t.stage).data;
    out->run_bytes = t.bytes;
    std::byte* payload = out->data;
    for (std::int32_t i = 0; t.send && i < t.regions.count; ++i) {
      const schedule::BufferRegion& region = schedule_.regions[static_cast<std::size_t>(t.regions.begin + i)];
      payload = memory_.pack_region(view(region.buffer), {region.rows, region.heads}, t.wire, payload);
    }
    return;
  }
  for (std::int32_t i = 0; i < t.regions.count; ++i) {
    const schedule::BufferRegion& region = schedule_.regions[static_cast<std::size_t>(t.regions.begin + i)];
    *out++ = byte_region(view(region.buffer), region.rows, region.heads);
  }
}

kernels::AttendScope PassRunner::scope(const schedule::Step& step) {
  kernels::AttendScope s;
  s.query_heads = step.query_heads;
  s.group = inputs_.group;
  if (!step.operation->has_pairs) return s;
  s.slices = schedule_.slices.data() + step.slices.begin;
  s.slice_count = step.slices.count;
  s.terms = inputs_.terms;
  // Of a backend without a fallback a plan says nothing that the kernel would have to follow.
  if (schedule_.backend->fallback != nullptr) s.use = step.backend.use;
  s.progress = {[](void* context) {
                  auto& runner = *static_cast<PassRunner*>(context);
                  runner.communicator_.progress();
                  runner.tell_progress();
                },
                this};
  return s;
}

void PassRunner::compute(std::size_t index) {
  StepViews views;
  const StepCall call = step_call(schedule_.steps[index], views);
  PreparedOperation* operation = prepared_[index].find(call);
  if (operation == nullptr) operation = &prepared_[index].add(step_kernels_[index](kernel_, call));
  operation->run(call);
}

StepCall PassRunner::step_call(const schedule::Step& step, StepViews& views) {
  for (std::size_t i = 0; i < tensor_count; ++i)
    if (step.buffers[i] >= 0) views[i] = view(step.buffers[i]);
  return {&step, views.data(), scope(step), inputs_.sink, inputs_.d_sink};
}

bool PassRunner::hold_steps(const StepInputs& inputs) {
  inputs_ = inputs;
  for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
    StepViews views;
    if (prepared_[i].hold(step_call(schedule_.steps[i], views)) == nullptr) return false;
  }
  return true;
}

void PassRunner::arrive(std::int32_t index) {
  const schedule::Transfer& t = schedule_.transfers[static_cast<std::size_t>(index)];
  if (t.peer == schedule_.rank) return copy_to_self(t);
  communicator_.wait(tickets_[static_cast<std::size_t>(index)]);
  if (t.stage < 0) return;
  const std::byte* payload = view(t.stage).data;
  for (std::int32_t i = 0; i < t.regions.count; ++i) {
    const schedule::BufferRegion& region = schedule_.regions[static_cast<std::size_t>(t.regions.begin + i)];
    payload = memory_.unpack_region(payload, t.wire, view(region.buffer), {region.rows, region.heads},
                                    t.write_mode);
  }
}

/// Both ends list the same rows in the same order, cut where their buffers are cut.
void PassRunner::copy_to_self(const schedule::Transfer& receive) {
  const auto index = static_cast<std::size_t>(&receive - schedule_.transfers.data());
  const schedule::Transfer& send = schedule_.transfers[static_cast<std::size_t>(self_send_[index])];
  const schedule::BufferRegion* from = &schedule_.regions[static_cast<std::size_t>(send.regions.begin)];
  const schedule::BufferRegion* to = &schedule_.regions[static_cast<std::size_t>(receive.regions.begin)];
  const schedule::BufferRegion* const to_end = to + receive.regions.count;
  i64 from_row = from->rows.begin, to_row = to->rows.begin;
  while (to != to_end) {
    const i64 rows = std::min(from->rows.end - from_row, to->rows.end - to_row);
    memory_.copy_region(view(from->buffer), {{from_row, from_row + rows}, from->heads}, view(to->buffer),
                        {{to_row, to_row + rows}, to->heads}, receive.write_mode);
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
