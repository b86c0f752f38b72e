// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"

#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Devices are advice up to so many times those that there are.
constexpr double most_devices = 64;

/// The smallest plan, and what it needs that there is not.
class Shortfall {
 public:
  Shortfall(const PlanRequest& request, StepPricer& pricer, const PlanCandidate& smallest)
      : request_(request),
        pricer_(pricer),
        smallest_(smallest),
        device_(static_cast<double>(smallest.memory.total_bytes) / pricer.device_bytes()),
        host_(pricer.host_overfull(smallest)) {}

  /// Host memory is what is missing, or is missed most.
  [[nodiscard]] bool of_host() const { return host_ > 1 && host_ > device_; }

  [[nodiscard]] std::string problem() const {
    const std::string text =
        fmt::format("no plan fits: the smallest ({}) needs ", describe(smallest_.choice));
    if (!of_host()) return text + device_text() + (host_ > 1 ? ", and " + host_text() : "");
    return text + host_text() + (device_ > 1 ? ", and " + device_text() : "");
  }

  [[nodiscard]] std::vector<std::string> remedies() {
    std::vector<std::string> list;
    if (host_ > 1) add_host_remedies(list);
    const double over = std::max(device_, host_), devices = static_cast<double>(pricer_.world()) * over;
    if (over <= most_devices && devices < max_ranks)
      list.push_back(fmt::format("about {} devices instead of {} (--nodes)", static_cast<i64>(devices) + 1,
                                 pricer_.world()));
    if (const i64 tokens = static_cast<i64>(static_cast<double>(request_.workload.seq) / over) / 1024 * 1024;
        tokens > 0)
      list.push_back(fmt::format("a sequence of about {} tokens instead of {} (--seq)", format_tokens(tokens),
                                 format_tokens(request_.workload.seq)));
    if (device_ > 1) add_device_remedies(list);
    return list;
  }

 private:
  [[nodiscard]] std::string device_text() const {
    const auto largest =
        std::max_element(smallest_.memory.rows.begin(), smallest_.memory.rows.end(),
                         [](const MemoryRow& a, const MemoryRow& b) { return a.bytes < b.bytes; });
    return fmt::format("{} of {} per device; most of it is {}, {} ({})",
                       format_bytes(static_cast<double>(smallest_.memory.total_bytes)),
                       format_bytes(pricer_.device_bytes()), largest->name,
                       format_bytes(static_cast<double>(largest->bytes)), largest->reason);
  }
  [[nodiscard]] std::string host_text() const {
    return fmt::format("{} of host memory on a host of {} ({} x {})",
                       format_bytes(pricer_.bytes_on_host(smallest_)), format_bytes(pricer_.host_bytes()),
                       counted(pricer_.devices_per_node(), "rank"),
                       format_bytes(static_cast<double>(smallest_.memory.host_total_bytes)));
  }

  void add_host_remedies(std::vector<std::string>& list) {
    const Constraints& fixed = request_.fixed;
    std::string flags;
    const auto name = [&](const char* flag, bool given) {
      if (given) flags += (flags.empty() ? "" : " and ") + std::string(flag);
    };
    PlanRequest free = request_;
    name("--offload", fixed.offload.has_value());
    name("--offload-layers", request_.workload.offload_layers.has_value());
    free.fixed.offload.reset();
    free.workload.offload_layers.reset();
    bool fits = fixed.recompute != Recompute::offload && add_without(flags, free, list);
    name("--recompute", fixed.recompute.has_value());
    name("--recompute-layers", request_.workload.recompute_layers.has_value());
    free.fixed.recompute.reset();
    free.workload.recompute_layers.reset();
    if (!fits && fixed.recompute) fits = add_without(flags, free, list);
    list.push_back(fmt::format("hosts with {} of memory, where they have that (--host-memory)",
                               format_bytes(pricer_.bytes_on_host(smallest_))));
  }

  /// Names the plan that fits without the flags, where one does.
  static bool add_without(const std::string& flags, PlanRequest free, std::vector<std::string>& list) {
    if (flags.empty()) return false;
    free.max_candidates = 1;
    free.progress = nullptr;
    try {
      StepPricer pricer(free);
      list.push_back(
          fmt::format("drop {}: {} fits", flags, describe(search_with(free, pricer).best().choice)));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void add_device_remedies(std::vector<std::string>& list) const {
    const Constraints& fixed = request_.fixed;
    if (request_.memory.loss_tile_tokens == 0) list.emplace_back("a tiled loss (--loss-tile 2048)");
    if (fixed.recompute && *fixed.recompute != Recompute::offload)
      list.emplace_back("another recompute mode (drop --recompute)");
    if (fixed.zero_stage && *fixed.zero_stage < 3) list.emplace_back("ZeRO stage 3 (--zero 3)");
    const bool keeps_mlp = fixed.recompute == Recompute::none || fixed.recompute == Recompute::selective;
    if (request_.memory.mlp_tile_tokens == 0 && keeps_mlp) list.emplace_back("a tiled MLP (--mlp-tile 8192)");
  }

  const PlanRequest& request_;
  StepPricer& pricer_;
  const PlanCandidate& smallest_;
  double device_, host_;  ///< needed over what there is
};

}  // namespace

DoesNotFit does_not_fit(const PlanRequest& request, StepPricer& pricer, const PlanCandidate& smallest) {
  Shortfall shortfall(request, pricer, smallest);
  const double host = pricer.bytes_on_host(smallest) - pricer.host_bytes();
  const double device = static_cast<double>(smallest.memory.total_bytes) - pricer.device_bytes();
  return {shortfall.problem(), shortfall.remedies(), smallest.memory.total_bytes,
          shortfall.of_host() ? host : device};
}

}  // namespace usp
