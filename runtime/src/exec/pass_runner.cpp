// SPDX-License-Identifier: Apache-2.0
#include "pass_runner.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/words.hpp"

#include <algorithm>
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

PassRunner::PassRunner(const schedule::RankSchedule& schedule, kernels::AttentionKernel& kernel,
                       const ExecutorOptions& options, const std::vector<OperationKernel>& operations)
    : schedule_(schedule),
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
  early_send_.assign(schedule.steps.size(), -1);
  self_send_.assign(transfers, -1);
  channel_.assign(transfers, -1);
  region_begin_.resize(transfers);
  std::size_t regions = 0, max_starts = 0;
  std::int32_t channels = 0;
  for (std::size_t i = 0; i < transfers; ++i) {
    const schedule::Transfer& t = schedule.transfers[i];
    region_begin_[i] = regions;
    if (t.peer != schedule.rank) {
      channel_[i] = channels++;
      regions += static_cast<std::size_t>(region_count(t));
      if (t.send) sends_due_[static_cast<std::size_t>(t.due)].push_back(static_cast<std::int32_t>(i));
      if (t.follows >= 0) early_send_[static_cast<std::size_t>(t.follows)] = static_cast<std::int32_t>(i);
    } else if (!t.send) {
      find_self_send(i);
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
  std::size_t longest = 0;
  for (const schedule::Tick& tick : schedule.ticks)
    longest = std::max(longest, static_cast<std::size_t>(tick.steps.count));
  step_views_.resize(longest), step_calls_.resize(longest), gates_.resize(longest);
  completions_.resize(longest);
  for (const schedule::Tick& tick : schedule.ticks)
    max_starts = std::max(max_starts, static_cast<std::size_t>(tick.posts.count));
  byte_regions_.resize(regions);
  starts_.reserve(max_starts);
  for (std::size_t t = 0; t < ticks; ++t)
    tick_names_.push_back(std::string(word_of(schedule.pass)) + " tick " + std::to_string(t));
}

/// A rank's send to itself stands before its receive in the same tick.
void PassRunner::find_self_send(std::size_t receive) {
  const schedule::Transfer& t = schedule_.transfers[receive];
  for (std::size_t s = receive; s-- > 0 && self_send_[receive] < 0;) {
    const schedule::Transfer& send = schedule_.transfers[s];
    if (send.send && send.move == t.move && send.peer == t.peer)
      self_send_[receive] = static_cast<std::int32_t>(s);
  }
  expects(self_send_[receive] >= 0, "a rank receives from itself what it never sent");
}

bool PassRunner::is_exposed(const schedule::Transfer& t) const {
  const auto begin = schedule_.ticks.begin() + t.start - (t.early ? 1 : 0),
             end = schedule_.ticks.begin() + t.due + 1;
  return std::all_of(begin, end, [](const schedule::Tick& tick) { return tick.steps.count == 0; });
}

std::vector<comm::ChannelEnd> PassRunner::ends(bool placed) {
  std::vector<comm::ChannelEnd> all;
  for (std::size_t i = 0; i < schedule_.transfers.size(); ++i) {
    const schedule::Transfer& t = schedule_.transfers[i];
    if (channel_[i] < 0) continue;
    comm::ChannelEnd m;
    m.peer = t.peer;
    m.send = t.send;
    m.push = t.push;
    m.tag = t.move;
    m.tick = t.start;
    m.due = t.due;
    m.exposed = is_exposed(t);
    m.gated = t.gated;
    m.early = t.early;
    m.operation = operation(schedule_.pass, t.write_mode);
    m.bytes = t.bytes;
    m.region_count = region_count(t);
    if (placed && m.offers()) {
      describe(i);
      m.regions = &byte_regions_[region_begin_[i]];
    }
    all.push_back(m);
  }
  return all;
}

void PassRunner::run(const StepInputs& inputs, comm::Channels& channels, PassRecord& record) {
  start_ = std::chrono::steady_clock::now();
  if (clock_) clock_->restart();
  inputs_ = inputs;
  channels_ = &channels;
  record_ = &record;
  record.ticks.resize(schedule_.ticks.size());
  record.gated_calls = 0;
  channels.begin();
  try {
    for (std::size_t t = 0; t < schedule_.ticks.size(); ++t) {
      const device::NamedRange range(tick_names_[t].c_str());
      tick_ = static_cast<std::int64_t>(t);
      tell_progress();
      run_tick(t, record.ticks[t]);
    }
  } catch (...) {
    leave();
    throw;
  }
  memory_.join_copies();
  if (clock_) read_clock(record.ticks);
}

/// What has been kept of a pass that failed still goes to memory that the caller may free.
void PassRunner::leave() const noexcept {
  try {
    memory_.join_copies();
  } catch (...) {
    // The error that ended the pass is the one to report.
  }
}

/// After the steps of the tick, which are under way then.
void PassRunner::keep(std::int32_t tick) {
  const auto first = std::lower_bound(schedule_.keeps.begin(), schedule_.keeps.end(), tick,
                                      [](const schedule::Keep& k, std::int32_t t) { return k.tick < t; });
  for (auto k = first; k != schedule_.keeps.end() && k->tick == tick; ++k)
    memory_.copy_beside(view(k->from), view(k->to));
}

void PassRunner::run_tick(std::size_t t, TickTimes& times) {
  const schedule::Tick& tick = schedule_.ticks[t];
  times.begin_s = now();
  bind(static_cast<int>(t));
  start(tick);
  times.posted_s = now();
  const std::int32_t steps_end = tick.steps.begin + tick.steps.count;
  for (std::int32_t i = tick.steps.begin; i < steps_end;) {
    const schedule::ListRef steps = call_at(i, steps_end);
    compute(steps);
    i += steps.count;
  }
  keep(static_cast<std::int32_t>(t));
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

/// Packs the staged sends of a tick in their wire dtype, and starts its transfers.
void PassRunner::start(const schedule::Tick& tick) {
  starts_.clear();
  for (std::int32_t i = tick.posts.begin; i < tick.posts.begin + tick.posts.count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const schedule::Transfer& t = schedule_.transfers[index];
    if (channel_[index] < 0) continue;
    if (t.stage >= 0 && t.send) pack(t);
    describe(index);
    starts_.push_back({channel_[index], &byte_regions_[region_begin_[index]], region_count(t)});
  }
  if (!starts_.empty()) channels_->start(starts_.data(), static_cast<i64>(starts_.size()));
}

void PassRunner::pack(const schedule::Transfer& t) {
  std::byte* payload = view(t.stage).data;
  for (std::int32_t i = 0; i < t.regions.count; ++i) {
    const schedule::BufferRegion& region = schedule_.regions[static_cast<std::size_t>(t.regions.begin + i)];
    payload = memory_.pack_region(view(region.buffer), {region.rows, region.heads}, t.wire, payload);
  }
}

/// Fills the byte regions of a transfer.
void PassRunner::describe(std::size_t transfer) {
  const schedule::Transfer& t = schedule_.transfers[transfer];
  comm::StridedBytes* out = &byte_regions_[region_begin_[transfer]];
  if (t.stage >= 0) {
    *out = comm::StridedBytes{};
    out->data = view(t.stage).data;
    out->run_bytes = t.bytes;
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
                  runner.channels_->progress();
                  runner.tell_progress();
                },
                this};
  return s;
}

/// The steps of one call: `step`, and those of its list up to `end`.
schedule::ListRef PassRunner::call_at(std::int32_t step, std::int32_t end) const {
  std::int32_t next = step + 1;
  while (next < end && schedule_.steps[static_cast<std::size_t>(next)].joined) ++next;
  return {step, next - step};
}

StepList PassRunner::list_of(schedule::ListRef steps) {
  bool is_list = steps.count > 1;
  for (std::int32_t i = 0; i < steps.count; ++i) {
    const schedule::Step& step = schedule_.steps[static_cast<std::size_t>(steps.begin + i)];
    const auto at = static_cast<std::size_t>(i);
    step_calls_[at] = step_call(step, step_views_[at]);
    if (i > 0) step_calls_[at].sink = nullptr;  // the state of a list begins with its first block
    gates_[at] = {};
    is_list = is_list || step.gates.count > 0;
  }
  return {step_calls_.data(), steps.count, is_list ? gates_.data() : nullptr, {}, nullptr};
}

void PassRunner::compute(schedule::ListRef steps) {
  const auto first = static_cast<std::size_t>(steps.begin);
  StepList list = list_of(steps);
  PreparedOperation* operation = prepared_[first].find(list);
  if (operation == nullptr) operation = &prepared_[first].add(step_kernels_[first](kernel_, list));
  await_gates(steps, list);
  announce_completions(steps, list);
  operation->run(list);
  close_gates(steps, list);
}

/// The transfers that a step awaits itself.
std::span<const std::int32_t> PassRunner::gates_of(std::int32_t step) const {
  const schedule::ListRef gates = schedule_.steps[static_cast<std::size_t>(step)].gates;
  return {schedule_.gates.data() + gates.begin, static_cast<std::size_t>(gates.count)};
}

/// What the steps of a call await is there, or has gates: where all of it that comes from others has. Then
/// everything that opens them is under way.
void PassRunner::await_gates(schedule::ListRef steps, StepList& list) {
  bool gated = true;
  const auto each = [&](const auto& visit) {
    for (std::int32_t i = 0; i < steps.count; ++i)
      for (const std::int32_t transfer : gates_of(steps.begin + i))
        visit(static_cast<std::size_t>(i), transfer);
  };
  each([&](std::size_t step, std::int32_t transfer) {
    const std::int32_t channel = channel_[static_cast<std::size_t>(transfer)];
    if (channel < 0) return arrive(transfer);
    const std::optional<comm::ReceiveGate> gate = channels_->gate(channel);
    gated = gated && gate && gates_[step].flag == nullptr &&
            (list.watch.fault == nullptr || list.watch.fault == gate->watch.fault);
    if (gated) gates_[step] = gate->gate, list.watch = gate->watch;
  });
  if (gated) return;
  each([&](std::size_t step, std::int32_t transfer) {
    if (channel_[static_cast<std::size_t>(transfer)] >= 0) arrive(transfer);
    gates_[step] = {};
  });
  list.watch = {};
}

/// What a gated call computes leaves block by block, where the transport lets it.
void PassRunner::announce_completions(schedule::ListRef steps, StepList& list) {
  if (list.watch.fault == nullptr) return;  // not gated
  for (std::int32_t i = 0; i < steps.count; ++i) {
    const std::int32_t send = early_send_[static_cast<std::size_t>(steps.begin + i)];
    const auto completion =
        send < 0 ? std::nullopt : channels_->completion(channel_[static_cast<std::size_t>(send)]);
    completions_[static_cast<std::size_t>(i)] = completion.value_or(kernels::Completion{});
    if (completion) list.completions = completions_.data();
  }
}

/// After the call: the transfers that it awaited end. On the host one that never came ends the job, named
/// first.
void PassRunner::close_gates(schedule::ListRef steps, const StepList& list) {
  if (list.watch.fault == nullptr) return;  // not gated
  ++record_->gated_calls;
  const auto close = [&](std::int32_t step) {
    for (const std::int32_t transfer : gates_of(steps.begin + step))
      if (channel_[static_cast<std::size_t>(transfer)] >= 0) wait(static_cast<std::size_t>(transfer));
  };
  if (memory_.stream() == nullptr && *list.watch.fault != 0)
    close(kernels::GateFault::of(*list.watch.fault).block);
  for (std::int32_t i = 0; i < steps.count; ++i) close(i);
}

StepCall PassRunner::step_call(const schedule::Step& step, StepViews& views) {
  for (std::size_t i = 0; i < tensor_count; ++i)
    views[i] = step.buffers[i] >= 0 ? view(step.buffers[i]) : kernels::View();
  if (step.operation->has_pairs) {
    const auto cut = [&](Tensor tensor, Range rows) {
      kernels::View& v = views[static_cast<std::size_t>(tensor)];
      if (v.data == nullptr || rows.size() == v.rows) return;
      v.data = v.at(0, rows.begin, v.heads.begin);
      v.rows = rows.size();
    };
    for (const Tensor x : {Tensor::k, Tensor::v}) cut(x, step.key_rows);
    for (const Tensor x : {Tensor::dk, Tensor::dv}) cut(x, step.dk_rows);
  }
  return {&step, views.data(), scope(step), inputs_.sink, inputs_.d_sink};
}

bool PassRunner::hold_steps(const StepInputs& inputs) {
  inputs_ = inputs;
  for (const schedule::Tick& tick : schedule_.ticks) {
    const std::int32_t end = tick.steps.begin + tick.steps.count;
    for (std::int32_t i = tick.steps.begin; i < end;) {
      const schedule::ListRef steps = call_at(i, end);
      if (prepared_[static_cast<std::size_t>(i)].hold(list_of(steps)) == nullptr) return false;
      i += steps.count;
    }
  }
  return true;
}

void PassRunner::arrive(std::int32_t index) {
  const schedule::Transfer& t = schedule_.transfers[static_cast<std::size_t>(index)];
  if (t.peer == schedule_.rank) return copy_to_self(t);
  wait(static_cast<std::size_t>(index));
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
  for (const std::int32_t i : sends_due_[static_cast<std::size_t>(tick)]) wait(static_cast<std::size_t>(i));
}

void PassRunner::wait(std::size_t transfer) {
  const std::int32_t channel = channel_[transfer];
  record_->transfers[static_cast<std::size_t>(channel)].executed_bytes = channels_->wait(channel);
}

}  // namespace usp
