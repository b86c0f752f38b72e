// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/calibrate.hpp"

#include "assemble.hpp"
#include "exchange.hpp"
#include "kernel_call.hpp"
#include "partial_file.hpp"
#include "timer.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace usp {
namespace {

using namespace measure;

constexpr i64 least_message_bytes = 1024;
/// Where a curve may end when the time is up: its longest message is led by the rate, not by the latency or
/// by the timers of TCP, which hold single messages of 64 to 256 KiB for milliseconds.
constexpr i64 ruled_bytes = i64{1} << 20;
constexpr double ruled_s = 0.1;
/// Where a part has less time than its sizes take at the full pace.
constexpr double hurried_part_s = 0.5;
constexpr Pace hurried_pace{1e-3, 3, 4, 0.05, i64{64} << 20};
constexpr Pace quick_pace{1e-3, 3, 4, 0.05, i64{1} << 20};

/// One rank's part in the measurements.
class RankLab {
 public:
  RankLab(const CalibrateOptions& options, comm::Communicator& control)
      : options_(options),
        control_(control),
        kernel_(kernels::find_factory(options.kernel)->make(kernels::host_memory(), false)),
        data_plane_(comm::make_message_data_plane(control)),
        machine_(machine_of(control)),
        timer_(control, kernel_->memory(), options.quick ? quick_pace : Pace{},
               [this] { check_interrupt(); }),
        memory_(*data_plane_, kernel_->memory()),
        parts_(parts_of(machine_, options.quick)) {}

  /// Collective. Rank 0 returns all parts; `resumed` counts those of the partial file.
  [[nodiscard]] Results measure_all(std::size_t& resumed) {
    name_shared_cores();
    name_idle_line();
    resume();
    resumed = results_.size();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (root())
        tell(options_.progress, static_cast<std::int64_t>(i), static_cast<std::int64_t>(parts_.size()),
             "measurements");
      const std::string name = parts_[i].name();
      if (results_.count(name) > 0) continue;
      if (!begin_part(i)) continue;
      results_[name] = measure(parts_[i]);
      keep();
    }
    name_left_out();
    return results_;
  }
  [[nodiscard]] const Machine& machine() const { return machine_; }
  [[nodiscard]] std::string kernel_name() const { return kernel_->name(); }
  [[nodiscard]] std::size_t part_count() const { return results_.size(); }

 private:
  [[nodiscard]] bool root() const { return control_.rank() == 0; }

  [[nodiscard]] Settings settings() const {
    return {{"hosts", fmt::format("{}", fmt::join(machine_.hosts, ", "))},
            {"hosts of the ranks", fmt::format("{}", fmt::join(machine_.host_of, ", "))},
            {"communicator", control_.name()},
            {"kernel", kernel_->name()},
            {"dtype", std::string(word_of(options_.dtype))},
            {"quick", options_.quick ? "yes" : "no"}};
  }

  /// Throws on rank 0, which ends the others.
  void check_interrupt() const {
    if (!root() || !options_.interrupted || !options_.interrupted()) return;
    const std::string kept =
        options_.partial.empty()
            ? "nothing is kept: the output is no file"
            : fmt::format("{} keeps them: the same command goes on with the others, --restart measures anew",
                          options_.partial);
    throw EnvironmentError(
        fmt::format("interrupted after {} of {} measurements; {}", results_.size(), parts_.size(), kept));
  }

  void name_idle_line() const {
    if (root() && options_.note && options_.nic_gb_s && machine_.host_count() == 1)
      options_.note("--nic has no effect: all ranks are on one host");
  }

  void name_shared_cores() const {
    if (!root() || !options_.note || !machine_.shares_cores()) return;
    options_.note(fmt::format(
        "{} ranks share {} cores: kernels and copies are timed on as many ranks as there are cores while the "
        "others wait, transfers on all at once, and what transfers add to kernels is not measured; give each "
        "rank a core of its own",
        control_.size(), std::count(machine_.own_core.begin(), machine_.own_core.end(), true)));
  }

  /// Rank 0 reads the file; all ranks get what it holds.
  void resume() {
    const bool kept =
        root() && !options_.partial.empty() && !options_.restart && std::filesystem::exists(options_.partial);
    std::string text = kept ? read_file(options_.partial) : "";
    auto bytes = static_cast<i64>(text.size());
    if (root() && kept) static_cast<void>(read_partial(text, options_.partial, settings(), parts_));
    control_.broadcast(&bytes, sizeof bytes, 0);
    if (bytes == 0) return;
    text.resize(static_cast<std::size_t>(bytes));
    control_.broadcast(text.data(), bytes, 0);
    results_ = read_partial(text, options_.partial, settings(), parts_).results;
    if (root() && options_.note)
      options_.note(fmt::format("goes on with {} of {} measurements of {}; --restart measures anew",
                                results_.size(), parts_.size(), options_.partial));
  }
  void keep() const {
    if (root() && !options_.partial.empty())
      write_file(options_.partial, write_partial({settings(), results_}));
  }

  /// What is left of the time is for all parts that are left. False for one that is not needed where none
  /// is.
  [[nodiscard]] bool begin_part(std::size_t index) {
    const double now = timer_.elapsed_s(), left = std::max(0.0, options_.max_seconds - now);
    if (left == 0 && parts_[index].optional) return false;
    const double share = left / static_cast<double>(parts_.size() - index);
    part_end_s_ = now + share;
    if (!options_.quick) timer_.set_pace(share < hurried_part_s ? hurried_pace : Pace{});
    return true;
  }

  void name_left_out() const {
    if (!root() || !options_.note || results_.size() == parts_.size()) return;
    const auto first = std::find_if(parts_.begin(), parts_.end(),
                                    [&](const Part& part) { return results_.count(part.name()) == 0; });
    options_.note(
        fmt::format("the time was up before {} of {} measurements, the first of them {}; what they "
                    "refine is interpolated; more --max-seconds have them",
                    parts_.size() - results_.size(), parts_.size(), first->name()));
  }

  [[nodiscard]] bool time_is_up() { return timer_.elapsed_s() >= part_end_s_; }

  [[nodiscard]] Rows measure(const Part& part) {
    switch (part.kind) {
      case Part::Kind::copy:
        return copies();
      case Part::Kind::kernel:
        return kernel(part);
      case Part::Kind::exchange:
        return exchange(part);
      case Part::Kind::interference:
        return interference(part.key);
    }
    throw InternalError("a measurement has no kind");
  }

  Rows copies() {
    constexpr i64 width = 1024;
    Rows rows;
    const auto from = kernel_->memory().make_arena(), to = kernel_->memory().make_arena();
    for (i64 bytes = i64{1} << 20; bytes <= timer_.pace().max_bytes; bytes *= 4) {
      from->reserve(bytes), to->reserve(bytes);
      kernel_->memory().set_bytes(from->data(), 0, bytes);
      const i64 count = bytes / (width * bytes_of(DType::fp32));
      const kernels::ViewRegion all{{0, count}, {0, 1}};
      const kernels::View source(from->data(), DType::fp32, 1, count, {0, 1}, width),
          target(to->data(), DType::fp32, 1, count, {0, 1}, width);
      const Sample sample = measure_local(
          [&] { kernel_->memory().copy_region(source, all, target, all, WriteMode::overwrite); });
      rows.push_back({2.0 * static_cast<double>(bytes), sample.seconds, sample.spread});
      if (time_is_up()) break;
    }
    return rows;
  }

  /// What a rank computes alone: where ranks share cores, so many take part as there are cores.
  [[nodiscard]] Sample measure_local(const std::function<void()>& call) {
    if (machine_.has_own_core(control_.rank())) return timer_.measure(call);
    return timer_.measure([] {});
  }

  Rows kernel(const Part& part) {
    Rows rows;
    for (const GridCall& grid : kernel_grid(part.head_dim, bytes_of(options_.dtype), options_.quick)) {
      const bool window = grid.shape.mask == KernelShape::Mask::window;
      if (!window && rows.size() >= least_grid_calls && time_is_up()) continue;
      const KernelShape& s = grid.shape;
      KernelCall call(*kernel_, options_.dtype, s, grid.window);
      if (part.backward) call.prepare_backward();
      const Sample sample = measure_local([&] { part.backward ? call.backward() : call.forward(); });
      rows.push_back({s.query_heads, s.kv_heads, s.rows, s.mean_keys, s.key_rows,
                      static_cast<double>(static_cast<int>(s.mask)), sample.seconds, sample.spread});
    }
    return rows;
  }

  Rows exchange(const Part& part) {
    Rows rows;
    const NetworkKey& key = part.key;
    const int rank = control_.rank();
    const ExchangeRole role = part.between_pair()
                                  ? role_between(part.first_host, part.second_host, machine_, rank)
                                  : role_of(key, machine_, rank);
    i64 step = 2;
    for (i64 message = least_message_bytes;; message *= step) {
      if (!part.doubles() && (options_.quick || time_is_up())) step = 4;
      Exchange exchange(*data_plane_, memory_, role, message);
      const Sample sample = timer_.measure([&] { exchange.run(); });
      const i64 bytes = message * key.messages();
      rows.push_back({static_cast<double>(bytes), sample.seconds, sample.spread});
      const bool enough = sample.seconds > timer_.pace().longest_s || step * bytes > timer_.pace().max_bytes;
      const bool ruled = options_.quick || bytes >= ruled_bytes || sample.seconds >= ruled_s;
      if (rows.size() >= 2 && (enough || (ruled && time_is_up()))) return rows;
    }
  }

  /// A hop that takes about so long.
  [[nodiscard]] i64 hop_bytes(const NetworkKey& key, double seconds) const {
    const Part part{.kind = Part::Kind::exchange, .key = key};
    auto bytes = static_cast<double>(least_message_bytes);
    double nearest = -1;
    if (const auto rows = results_.find(part.name()); rows != results_.end())
      for (const auto& row : rows->second) {
        const double off = std::abs(std::log(row[1] / seconds));
        if (nearest < 0 || off < nearest) nearest = off, bytes = row[0];
      }
    return static_cast<i64>(bytes);
  }

  Rows interference(const NetworkKey& key) {
    const double heads = options_.quick ? 2 : 4;
    const i64 tokens = options_.quick ? 256 : 512;
    KernelShape shape{heads,
                      heads,
                      64,
                      64,
                      static_cast<double>(tokens),
                      0,
                      static_cast<double>(tokens),
                      KernelShape::Mask::causal,
                      static_cast<int>(bytes_of(options_.dtype))};
    KernelCall call(*kernel_, options_.dtype, shape);
    const double kernel_s = timer_.measure([&] { call.forward(); }).seconds;
    const ExchangeRole role = role_of(key, machine_, control_.rank());
    Rows rows;
    for (const double part : {0.25, 0.5, 1.0}) {
      Exchange hop(*data_plane_, memory_, role, hop_bytes(key, part * kernel_s));
      call.set_progress({[](void* of) { static_cast<Exchange*>(of)->progress(); }, &hop});
      const double transfer_s = timer_.measure([&] { hop.run(); }).seconds;
      const double both_s = timer_
                                .measure([&] {
                                  hop.start();
                                  call.forward();
                                  hop.finish();
                                })
                                .seconds;
      call.set_progress({});
      rows.push_back({kernel_s, transfer_s, both_s});
      if (time_is_up()) break;
    }
    return rows;
  }

  const CalibrateOptions& options_;
  comm::Communicator& control_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::unique_ptr<comm::DataPlane> data_plane_;
  Machine machine_;
  Timer timer_;
  ExchangeMemory memory_;
  std::vector<Part> parts_;
  Results results_;
  double part_end_s_ = 0;
};

void check_options(const CalibrateOptions& options) {
  const kernels::KernelFactory* const factory = kernels::find_factory(options.kernel);
  if (factory == nullptr)
    throw UsageError(
        fmt::format("--backend: '{}' is not one of {}", options.kernel, kernels::kernel_words()));
  if (factory->on_gpu)
    throw UsageError(
        fmt::format("--backend {} computes on GPUs, which usp calibrate does not measure: it measures "
                    "ranks of hosts; curves of GPUs come from nccl-tests (--curves), their kernels from "
                    "usp bench --gpu",
                    options.kernel));
}

void agree_on(const CalibrateOptions& options, comm::Communicator& control) {
  comm::agree(control,
              {{"--backend", Digest().bytes(options.kernel).value()},
               {"--dtype", Digest().add(options.dtype).value()},
               {"--quick", Digest().add(options.quick).value()},
               {"--max-seconds", Digest().add(static_cast<i64>(options.max_seconds * 1e6)).value()}});
}

}  // namespace

std::optional<CalibrateResult> calibrate(const CalibrateOptions& options) {
  check_options(options);
  CalibrateResult result;
  const bool here = comm::run_started_ranks(options.ranks, options.comm, [&](comm::Communicator& control) {
    if (control.rank() == 0 && options.prepare) options.prepare();
    agree_on(options, control);
    const auto begin = std::chrono::steady_clock::now();
    RankLab lab(options, control);
    std::size_t resumed = 0;
    const Results results = lab.measure_all(resumed);
    if (control.rank() != 0) return;
    const Measured measured{lab.machine(), control.name(), lab.kernel_name(), results};
    result.calibration = calibration_of_parts(measured, options);
    result.cluster = cluster_of(measured, result.calibration, options);
    result.communicator = control.name();
    result.parts = lab.part_count();
    result.resumed = resumed;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  if (!here) return std::nullopt;
  return result;
}

}  // namespace usp
