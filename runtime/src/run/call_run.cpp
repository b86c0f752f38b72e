// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/call_run.hpp"

#include "call_parts.hpp"
#include "gather.hpp"
#include "rank_context.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/device/stream_clock.hpp"
#include "usp/kernels/regions.hpp"
#include "usp/schedule/validate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace usp {
namespace {

int index(Pass pass) {
  return pass == Pass::forward ? 0 : 1;
}

int repetitions(const RunOptions& options) {
  return options.warm_up + options.repeat;
}

template <class T>
std::uint64_t digest_of(const std::vector<T>& values) {
  return digest_of_bytes(values.data(), values.size() * sizeof(T));
}

/// Before anything of a run: rank 0 prepares, and processes that were started differently end with an error.
void prepare(const RunOptions& options, const CallTensors& tensors, comm::Communicator& communicator) {
  if (communicator.rank() == 0 && options.prepare) options.prepare();
  const auto tensor = [&](const char* name, const HostTensor& t) {
    return comm::AgreedField{name, digest_of(t.bytes())};
  };
  comm::agree(communicator,
              {{"--forward-only", Digest().add(options.training).value()},
               {"--kernel", Digest().bytes(options.kernel).value()},
               {"transports", Digest().add(options.ulysses_transport).add(options.ring_transport).value()},
               {"--deterministic", Digest().add(options.deterministic).value()},
               {"--repeat", Digest().add(options.warm_up).add(options.repeat).value()},
               {"--verify or -o", Digest().add(options.collect).value()},
               tensor("q (--seed, --q)", tensors.q),
               tensor("k (--seed, --k)", tensors.k),
               tensor("v (--seed, --v)", tensors.v),
               tensor("dO (--seed, --dout)", tensors.d_out),
               {"per-head inputs (--seed)", Digest()
                                                .add(tensors.dropout_seed)
                                                .add(digest_of(tensors.sink))
                                                .add(digest_of(tensors.alibi_slopes))
                                                .add(digest_of(tensors.admitted))
                                                .value()}});
}

/// One rank's share of a call.
class RankCall {
 public:
  RankCall(const AttentionPlan& plan, const Documents& documents, const CallTensors& tensors,
           const RunOptions& options, comm::Communicator& control)
      : plan_(plan),
        options_(options),
        control_(control),
        engine_(plan, options, control),
        data_plane_(engine_.data_plane()),
        progress_(control_.rank() == 0 ? options.progress : nullptr),
        operator_(plan, data_plane_, engine_.kernel(), with_progress(options.call)) {
    operator_.set_batch(documents);
    q_ = tensors.q.rows_of(operator_.q_tokens());
    k_ = tensors.k.rows_of(operator_.kv_tokens());
    v_ = tensors.v.rows_of(operator_.kv_tokens());
    if (options.training) d_out_ = own_d_out(tensors.d_out);
    blocks_ = block_mask(plan, documents, tensors);
    inputs_ = per_head_inputs(plan, tensors, blocks_);
    make_results();
    mirror(tensors);
    run_.device = engine_.device();
    run_.notes = data_plane_.notes();
    const kernels::Memory& memory = engine_.memory();
    if (options.stream_clock && memory.stream() != nullptr) clock_.emplace(*memory.call_stream());
  }

  /// One repetition; the first ones warm up.
  void repeat(int i) {
    const bool counts = i >= options_.warm_up;
    time(Pass::forward, counts, [&] { operator_.forward(inputs_, out_on_.view(), lse_on_.view()); });
    if (options_.collect && i + 1 == repetitions(options_) && !plan_.return_lse) keep_row_lse();
    if (!options_.training) return;
    d_sink_on_.clear();
    time(Pass::backward, counts, [&] {
      operator_.backward(inputs_, d_out_on_.view(),
                         {dq_on_.view(), dk_on_.view(), dv_on_.view(), d_sink_on_.data()});
    });
  }

  void finish(RunResult& report) {
    if (clock_) read_clock();
    if (options_.collect) fetch();
    engine_.memory().synchronize();
    data_plane_.check();
    for (const Pass pass : {Pass::forward, Pass::backward}) run_.record[index(pass)] = operator_.record(pass);
    run_.fallbacks = engine_.kernel().fallbacks();
    if (engine_.memory().stream() != nullptr) {
      run_.planned_memory_bytes = tensor_bytes() + operator_.planned_memory_bytes(options_.training);
      run_.held_memory_bytes = engine_.memory().held_bytes() + data_plane_.held_bytes();
    }
    collect(report);
  }

 private:
  [[nodiscard]] ExecutorOptions with_progress(ExecutorOptions options) {
    options.progress = &progress_;
    options.forward_only = !options_.training;
    return options;
  }

  /// Of all repetitions.
  void count_pass() {
    progress_.at(passes_++, std::int64_t{repetitions(options_)} * (options_.training ? 2 : 1), "passes");
  }

  /// Tokens that every rank holds have their dO on one rank: the copies then add up to the given tensor.
  [[nodiscard]] HostTensor own_d_out(const HostTensor& global) const {
    HostTensor mine = global.rows_of(operator_.q_tokens());
    const kernels::View view = mine.view();
    for (std::size_t i = 0; i < operator_.q_tokens().size(); ++i) {
      const i64 token = operator_.q_tokens()[i], row = static_cast<i64>(i);
      const bool shared = std::any_of(plan_.replicated_q.begin(), plan_.replicated_q.end(),
                                      [&](Range r) { return r.begin <= token && token < r.end; });
      if (!shared || token % control_.size() == control_.rank()) continue;
      for (i64 b = 0; b < view.batch; ++b)
        std::fill_n(view.at(b, row, view.heads.begin), view.row_stride * bytes_of(view.type), std::byte{0});
    }
    return mine;
  }

  void make_results() {
    const AttentionShape& s = plan_.shape;
    const auto rows = static_cast<i64>(operator_.q_tokens().size()),
               keys = static_cast<i64>(operator_.kv_tokens().size());
    const Range queries{0, s.query_heads}, kv{0, s.kv_heads};
    out_ = HostTensor(s.dtype, s.batch, rows, queries, s.head_dim_v);
    if (plan_.return_lse) lse_ = HostTensor(accumulator_of(s.dtype), s.batch, rows, queries, 1);
    if (!options_.training) return;
    dq_ = HostTensor(s.dtype, s.batch, rows, queries, s.head_dim_qk);
    dk_ = HostTensor(s.dtype, s.batch, keys, kv, s.head_dim_qk);
    dv_ = HostTensor(s.dtype, s.batch, keys, kv, s.head_dim_v);
    d_sink_.assign(static_cast<std::size_t>(plan_.sink ? s.query_heads : 0), 0);
  }

  /// Puts everything where the kernel reads and writes it.
  void mirror(const CallTensors& tensors) {
    kernels::Memory& memory = engine_.memory();
    const auto tensor = [&](Mirror& mirrored, HostTensor& host) {
      if (!host.empty() || host.view().width > 0) mirrored = Mirror(memory, host);
    };
    tensor(q_on_, q_), tensor(k_on_, k_), tensor(v_on_, v_), tensor(d_out_on_, d_out_);
    tensor(out_on_, out_), tensor(lse_on_, lse_), tensor(dq_on_, dq_), tensor(dk_on_, dk_),
        tensor(dv_on_, dv_);
    inputs_.q = q_on_.view();
    inputs_.k = k_on_.view();
    inputs_.v = v_on_.view();
    sink_on_ = MirroredList<double>(memory, plan_.sink ? tensors.sink : std::vector<double>{});
    d_sink_on_ = MirroredList<double>(memory, d_sink_);
    slopes_on_ =
        MirroredList<double>(memory, plan_.score.alibi ? tensors.alibi_slopes : std::vector<double>{});
    admitted_on_ = MirroredList<std::uint8_t>(
        memory, plan_.score.block_tokens > 0 ? tensors.admitted : std::vector<std::uint8_t>{});
    inputs_.sink = sink_on_.data();
    inputs_.alibi_slopes = slopes_on_.data();
    blocks_.admitted = admitted_on_.data();
  }

  [[nodiscard]] i64 tensor_bytes() const {
    i64 bytes = 0;
    for (const HostTensor* t : {&q_, &k_, &v_, &d_out_, &out_, &lse_, &dq_, &dk_, &dv_})
      bytes += static_cast<i64>(t->bytes().size());
    return bytes;
  }

  void fetch() {
    for (Mirror* tensor : {&out_on_, &lse_on_, &dq_on_, &dk_on_, &dv_on_}) tensor->fetch();
    d_sink_ = d_sink_on_.fetch();
  }

  void keep_row_lse() {
    const kernels::ConstView lse = operator_.row_lse();
    HostTensor host(lse.type, lse.batch, lse.rows, lse.heads, lse.width);
    engine_.memory().to_host(host.bytes().data(), lse.data, static_cast<i64>(host.bytes().size()));
    engine_.memory().synchronize();
    row_lse_ = {operator_.row_tokens(), std::move(host)};
  }

  template <class Call>
  void time(Pass pass, bool counts, Call&& call) {
    count_pass();
    if (clock_) return time_on_stream(pass, counts, call);
    engine_.memory().synchronize();
    control_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    engine_.memory().synchronize();
    const std::chrono::duration<double> span = std::chrono::steady_clock::now() - begin;
    if (counts) run_.seconds[index(pass)].push_back(span.count());
  }

  /// Enqueues ahead of the GPU, so that its time is not the host's. All ranks begin together.
  template <class Call>
  void time_on_stream(Pass pass, bool counts, Call&& call) {
    if (counts && timed_.empty()) {
      engine_.memory().synchronize();
      control_.barrier();
      clock_->restart();
    }
    if (counts) clock_->mark();
    call();
    if (!counts) return;
    clock_->mark();
    timed_.push_back(pass);
  }

  void read_clock() {
    engine_.memory().synchronize();
    for (std::size_t i = 0; i < timed_.size(); ++i)
      run_.seconds[index(timed_[i])].push_back(clock_->at(2 * i + 2) - clock_->at(2 * i + 1));
  }

  void collect(RunResult& report) {
    const bool root = control_.rank() == 0;
    auto ranks = gather(control_, run_);
    const auto bring = [&](const std::vector<i64>& tokens, HostTensor& rows, std::vector<Part>& target) {
      auto parts = gather(control_, Part{tokens, std::move(rows)});
      if (root) target = std::move(parts);
    };
    if (options_.collect) {
      bring(operator_.q_tokens(), out_, report.out);
      if (plan_.return_lse)
        bring(operator_.q_tokens(), lse_, report.lse);
      else
        bring(row_lse_.tokens, row_lse_.rows, report.lse);
      if (options_.training) {
        bring(operator_.q_tokens(), dq_, report.dq);
        bring(operator_.kv_tokens(), dk_, report.dk);
        bring(operator_.kv_tokens(), dv_, report.dv);
        if (plan_.sink) control_.all_reduce_sum(d_sink_.data(), static_cast<i64>(d_sink_.size()));
      }
    }
    if (!root) return;
    report.ranks = std::move(ranks);
    report.d_sink = d_sink_;
    report.kernel = engine_.kernel().name();
    report.communicator = data_plane_.name();
    report.training = options_.training;
  }

  const AttentionPlan& plan_;
  const RunOptions& options_;
  comm::Communicator& control_;  ///< of host memory
  RankContext engine_;
  comm::DataPlane& data_plane_;
  ProgressRelay progress_;
  std::int64_t passes_ = 0;
  AttentionOperator operator_;
  kernels::BlockMask blocks_;
  AttentionInputs inputs_;
  HostTensor q_, k_, v_, d_out_, out_, lse_, dq_, dk_, dv_;
  Mirror q_on_, k_on_, v_on_, d_out_on_, out_on_, lse_on_, dq_on_, dk_on_, dv_on_;
  MirroredList<double> sink_on_, d_sink_on_, slopes_on_;
  MirroredList<std::uint8_t> admitted_on_;
  Part row_lse_;
  std::vector<double> d_sink_;
  std::optional<device::StreamClock> clock_;
  std::vector<Pass> timed_;  ///< by the clock, two marks each
  RankResult run_;
};

}  // namespace

std::optional<RunResult> run_attention(const AttentionPlan& plan, const Documents& documents,
                                       const CallTensors& tensors, const RunOptions& options) {
  check_attention_plan(plan);
  RunResult report;
  const bool here = comm::run_ranks(plan.mesh.size(), options.comm, [&](comm::Communicator& communicator) {
    prepare(options, tensors, communicator);
    RankCall call(plan, documents, tensors, options, communicator);
    for (int i = 0; i < repetitions(options); ++i) call.repeat(i);
    call.finish(report);
  });
  if (!here) return std::nullopt;
  return report;
}

std::optional<InterleavedRuns> run_interleaved(const AttentionPlan& plan, const AttentionPlan& alone,
                                               const Documents& documents, const CallTensors& tensors,
                                               const RunOptions& options) {
  check_attention_plan(plan);
  expects(alone.mesh.size() == 1, "a plan for more than one rank, which rank 0 cannot run alone");
  InterleavedRuns report;
  const bool here = comm::run_ranks(plan.mesh.size(), options.comm, [&](comm::Communicator& communicator) {
    prepare(options, tensors, communicator);
    RankCall call(plan, documents, tensors, options, communicator);
    const auto self = comm::make_serial_communicator();
    std::optional<RankCall> other;
    if (communicator.rank() == 0) other.emplace(alone, documents, tensors, options, *self);
    for (int i = 0; i < repetitions(options); ++i) {
      call.repeat(i);
      communicator.barrier();
      if (other) other->repeat(i);
    }
    call.finish(report.ranks);
    if (other) other->finish(report.alone);
  });
  if (!here) return std::nullopt;
  return report;
}

std::optional<RunsByStream> run_by_stream(const AttentionPlan& plan, const Documents& documents,
                                          const CallTensors& tensors, const RunOptions& options) {
  RunOptions timing = options, watching = options;
  timing.stream_clock = true;
  watching.call.stream_times = true;
  watching.repeat = 1;
  RunsByStream report;
  const bool here = comm::run_ranks(plan.mesh.size(), options.comm, [&](comm::Communicator& communicator) {
    prepare(options, tensors, communicator);
    const auto run = [&](const RunOptions& how, RunResult& target) {
      RankCall call(plan, documents, tensors, how, communicator);
      for (int i = 0; i < repetitions(how); ++i) call.repeat(i);
      call.finish(target);
      communicator.barrier();  // peers may still read this rank's memory
    };
    run(timing, report.timed);
    run(watching, report.watched);
  });
  if (!here) return std::nullopt;
  return report;
}

std::vector<std::string> RunResult::notes() const {
  std::vector<std::string> all;
  for (const RankResult& rank : ranks)
    for (const std::string& note : rank.notes)
      if (std::find(all.begin(), all.end(), note) == all.end()) all.push_back(note);
  return all;
}

double RunResult::seconds(Pass pass) const {
  const std::size_t count = ranks.front().seconds[index(pass)].size();
  std::vector<double> slowest(count, 0);
  for (const RankResult& rank : ranks)
    for (std::size_t i = 0; i < count; ++i) slowest[i] = std::max(slowest[i], rank.seconds[index(pass)][i]);
  std::sort(slowest.begin(), slowest.end());
  if (count == 0) return 0;
  return (slowest[(count - 1) / 2] + slowest[count / 2]) / 2;
}

i64 RunResult::planned_bytes(Pass pass) const {
  i64 sum = 0;
  for (const RankResult& rank : ranks) sum += rank.record[index(pass)].planned_bytes(true);
  return sum;
}

i64 RunResult::executed_bytes(Pass pass) const {
  i64 sum = 0;
  for (const RankResult& rank : ranks) sum += rank.record[index(pass)].executed_bytes(true);
  return sum;
}

std::string RunResult::bytes_difference() const {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const int i : {0, 1}) {
      if (i == 1 && !training) continue;
      const PassRecord& record = ranks[r].record[i];
      const std::string found = difference(record.transfers);
      if (!found.empty()) return fmt::format("rank {}, {}: {}", r, word_of(record.pass), found);
    }
  return "";
}

std::vector<kernels::BackendFallback> RunResult::fallbacks() const {
  std::vector<kernels::BackendFallback> sum;
  for (const RankResult& rank : ranks)
    for (const kernels::BackendFallback& d : rank.fallbacks) {
      const auto same = std::find_if(sum.begin(), sum.end(), [&](const kernels::BackendFallback& other) {
        return other.pass == d.pass && other.why == d.why;
      });
      if (same == sum.end())
        sum.push_back(d);
      else
        same->count += d.count;
    }
  return sum;
}

HostTensor assemble(const std::vector<Part>& parts, i64 tokens, bool add) {
  expects(!parts.empty(), "nothing was collected");
  const kernels::ConstView first = parts.front().rows.view();
  Range heads = first.heads;
  for (const Part& part : parts) {
    heads.begin = std::min(heads.begin, part.rows.view().heads.begin);
    heads.end = std::max(heads.end, part.rows.view().heads.end);
  }
  HostTensor sum(DType::fp64, first.batch, tokens, heads, first.width);
  for (const Part& part : parts) {
    const kernels::ConstView rows = part.rows.view();
    for (std::size_t i = 0; i < part.tokens.size(); ++i) {
      const auto row = static_cast<i64>(i);
      kernels::copy_region(rows, {{row, row + 1}, rows.heads}, sum.view(),
                           {{part.tokens[i], part.tokens[i] + 1}, rows.heads},
                           add ? WriteMode::accumulate : WriteMode::overwrite);
    }
  }
  return sum;
}

}  // namespace usp
