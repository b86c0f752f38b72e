// SPDX-License-Identifier: Apache-2.0
#include "rank_lab.hpp"

#include "products.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/version.hpp"
#include "usp/comm/nccl.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace usp::measure {
namespace {

/// Where a part has less time than its sizes take at the full pace.
constexpr double hurried_part_s = 0.5;

std::vector<std::string> words_of(const std::vector<std::optional<Transport>>& transports) {
  std::vector<std::string> words;
  for (const std::optional<Transport> transport : transports)
    words.emplace_back(transport ? word_of(*transport) : "host");
  return words;
}

}  // namespace

RankLab::RankLab(const CalibrateOptions& options, comm::Communicator& control)
    : options_(options),
      control_(control),
      device_(options, measures_gpus(options), control),
      machine_(machine_of(control)),
      scope_(scope_of(options, machine_, device_, control)),
      dtype_(dtype_of(options, scope_.on_gpu)),
      clock_(make_span_clock(device_.memory())),
      timer_(control, *clock_, pace_of(scope_, false), [this] { check_interrupt(); }),
      parts_(parts_of(machine_, scope_)) {
  if (scope_.on_gpu && dtype_ != DType::bf16 && dtype_ != DType::fp16)
    throw UsageError(fmt::format("--dtype {}: kernels of GPUs compute in bf16 or fp16", word_of(dtype_)));
}

Measured RankLab::measure_all(std::size_t& resumed) {
  name_shared_cores();
  if (options_.nic_gb_s && machine_.host_count() == 1) note("--nic has no effect: all ranks are on one host");
  resume();
  resumed = results_.size();
  const Workbench bench{
      device_,         timer_, machine_, scope_,
      control_.rank(), dtype_, results_, [this] { return timer_.elapsed_s() >= part_end_s_; }};
  std::size_t skipped = 0;
  std::string first;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (root())
      tell(options_.progress, static_cast<std::int64_t>(i), static_cast<std::int64_t>(parts_.size()),
           "measurements");
    const std::string name = parts_[i].name();
    if (results_.count(name) > 0) continue;
    if (!begin_part(i)) {
      if (skipped++ == 0) first = name;
      continue;
    }
    Rows rows = measure(parts_[i], bench);
    if (rows.empty()) {
      name_unmeasured(parts_[i]);
      continue;
    }
    results_[name] = std::move(rows);
    keep();
  }
  if (skipped > 0) name_left_out(skipped, first);
  Measured measured{machine_, scope_,         control_.name(),      {},
                    results_, device_.card(), comm::nccl_version(), ""};
  for (const std::string& word : scope_.kernels) {
    const kernels::AttentionKernel& kernel = device_.kernel(word);
    const std::string library = kernel.library_version();
    measured.kernels.push_back({kernel.name(), library.empty() ? std::string(version) : library});
  }
  if (const auto library = open_products(device_.memory(), dtype_)) measured.products = library->name();
  return measured;
}

Settings RankLab::settings() const {
  return {{"hosts", fmt::format("{}", fmt::join(machine_.hosts, ", "))},
          {"hosts of the ranks", fmt::format("{}", fmt::join(machine_.host_of, ", "))},
          {"communicator", control_.name()},
          {"card", device_.card() ? device_.card()->info.name : "none"},
          {"kernels", fmt::format("{}", fmt::join(scope_.kernels, ", "))},
          {"transports", fmt::format("{}", fmt::join(words_of(scope_.transports), ", "))},
          {"dtype", std::string(word_of(dtype_))},
          {"quick", scope_.quick ? "yes" : "no"}};
}

void RankLab::check_interrupt() const {
  if (!root() || !options_.interrupted || !options_.interrupted()) return;
  const std::string kept =
      options_.partial.empty()
          ? "nothing is kept: the output is no file"
          : fmt::format("{} keeps them: the same command goes on with the others, --restart measures anew",
                        options_.partial);
  throw EnvironmentError(
      fmt::format("interrupted after {} of {} measurements; {}", results_.size(), parts_.size(), kept));
}

void RankLab::note(const std::string& text) const {
  if (root() && options_.note) options_.note(text);
}

void RankLab::name_shared_cores() const {
  if (!machine_.shares_cores() || scope_.on_gpu) return;
  note(fmt::format(
      "{} ranks share {} cores: kernels and copies are timed on as many ranks as there are cores while the "
      "others wait, transfers on all at once, and what transfers add to kernels is not measured; give each "
      "rank a core of its own",
      control_.size(), machine_.cores()));
}

void RankLab::name_left_out(std::size_t skipped, const std::string& first) const {
  note(
      fmt::format("the time was up before {} of {} measurements, the first of them {}; what they refine is "
                  "interpolated; more --max-seconds have them",
                  skipped, parts_.size(), first));
}

void RankLab::name_unmeasured(const Part& part) const {
  note(part.kind == Part::Kind::product
           ? std::string("matrix products are not measured: no library of them can be loaded for this type")
           : fmt::format("not measured: {}: the backend leaves it to another", part.name()));
}

/// Rank 0 reads the file; all ranks get what it holds.
void RankLab::resume() {
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
  note(fmt::format("goes on with {} of {} measurements of {}; --restart measures anew", results_.size(),
                   parts_.size(), options_.partial));
}

void RankLab::keep() const {
  if (root() && !options_.partial.empty())
    write_file(options_.partial, write_partial({settings(), results_}));
}

/// What is left of the time is for all parts that are left. False for one that is not needed where none is.
bool RankLab::begin_part(std::size_t index) {
  const double now = timer_.elapsed_s(), left = std::max(0.0, options_.max_seconds - now);
  if (left == 0 && parts_[index].optional) return false;
  const double share = left / static_cast<double>(parts_.size() - index);
  part_end_s_ = now + share;
  timer_.set_pace(pace_of(scope_, share < hurried_part_s));
  return true;
}

}  // namespace usp::measure
