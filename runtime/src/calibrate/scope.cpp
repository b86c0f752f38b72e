// SPDX-License-Identifier: Apache-2.0
#include "scope.hpp"

#include "machine.hpp"
#include "rank_device.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/nccl.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/backend.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace usp::measure {
namespace {

struct RankCard {
  std::array<char, 256> name{};
  std::array<char, 32> bus_id{};
};

const kernels::KernelFactory& factory_named(const std::string& word) {
  const kernels::KernelFactory* const factory = kernels::find_factory(word);
  if (factory == nullptr)
    throw UsageError(fmt::format("--backend: '{}' is not one of {}", word, kernels::kernel_words()));
  return *factory;
}

bool on_every_rank(comm::Communicator& control, bool mine) {
  i64 count = mine ? 1 : 0;
  control.all_reduce_sum(&count, 1);
  return count == control.size();
}

/// Whether the kernel computes on the card by itself; otherwise why not.
std::string objection_to(const std::string& word, RankDevice& device) {
  const kernels::KernelFactory& factory = factory_named(word);
  if (!factory.built) return "this build has none";
  const auto backend = find_backend(word);
  if (backend && backend->has_parts())
    return fmt::format("its kernels are those of {} and {}: measure these",
                       word_of(backend->of(Pass::forward)), word_of(backend->of(Pass::backward)));
  if (backend && device.card() && !schedule::runs_on(*backend, device.card()->info.compute_major))
    return fmt::format("it is for other cards than {}", device.card()->info.name);
  try {
    static_cast<void>(device.kernel(word));
    return "";
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

std::vector<std::string> kernels_of(const CalibrateOptions& options, bool on_gpu, RankDevice& device,
                                    comm::Communicator& control) {
  std::vector<std::string> asked = options.kernels;
  if (asked.empty() && !on_gpu) return {std::string(word_of(Backend{}))};
  if (asked.empty()) {
    asked = {std::string(word_of(preferred_gpu_backend()))};
    for (const Backend backend : backends())
      if (backend->on_gpu && !backend.has_parts() && backend != preferred_gpu_backend())
        asked.emplace_back(word_of(backend));
  }
  std::vector<std::string> there;
  for (const std::string& word : asked) {
    const std::string objection = objection_to(word, device);
    if (on_every_rank(control, objection.empty())) {
      there.push_back(word);
      continue;
    }
    const std::string why = objection.empty() ? "another rank lacks it" : objection;
    if (!options.kernels.empty()) throw EnvironmentError(fmt::format("--backend {}: {}", word, why));
    if (control.rank() == 0 && options.note)
      options.note(fmt::format("backend {} is not measured: {}", word, why));
  }
  if (there.empty()) throw EnvironmentError("no backend of GPUs runs here");
  return there;
}

/// Why payload of GPUs cannot go over a transport; empty: it can.
std::string objection_to(Transport transport, const Machine& machine, bool shared, bool nccl) {
  if (transport == Transport::copy_engine)
    return machine.host_count() > 1 ? "copy engines move data inside a host" : "";
  if (!nccl) return "NCCL is not available on every rank";
  return shared ? "ranks share a GPU, and NCCL wants one each" : "";
}

std::vector<std::optional<Transport>> transports_of(const CalibrateOptions& options, const Machine& machine,
                                                    bool shared, comm::Communicator& control) {
  std::vector<std::optional<Transport>> there;
  const bool nccl = on_every_rank(control, comm::nccl_available());
  if (control.size() == 1) return there;
  for (const Transport transport : {Transport::copy_engine, Transport::nccl}) {
    const bool asked = std::find(options.transports.begin(), options.transports.end(), transport) !=
                       options.transports.end();
    if (!options.transports.empty() && !asked) continue;
    const std::string objection = objection_to(transport, machine, shared, nccl);
    if (objection.empty()) {
      there.emplace_back(transport);
      continue;
    }
    if (asked) throw EnvironmentError(fmt::format("--transport {}: {}", word_of(transport), objection));
    if (control.rank() == 0 && options.note)
      options.note(fmt::format("transport {} is not measured: {}", word_of(transport), objection));
  }
  return there;
}

/// The same card on every rank; whether some of them share one.
bool ranks_share_cards(const std::vector<RankCard>& cards, const Machine& machine) {
  bool shared = false;
  for (std::size_t a = 0; a < cards.size(); ++a) {
    if (cards[a].name != cards[0].name)
      throw UsageError(fmt::format(
          "rank 0 has {} and rank {} has {}: a calibration is of one kind of card; choose with --devices",
          cards[0].name.data(), a, cards[a].name.data()));
    for (std::size_t b = 0; b < a; ++b)
      shared = shared || (cards[a].bus_id == cards[b].bus_id && machine.host_of[a] == machine.host_of[b]);
  }
  return shared;
}

}  // namespace

bool measures_gpus(const CalibrateOptions& options) {
  std::optional<bool> on_gpu;
  if (options.device) on_gpu = *options.device == RunOn::gpu;
  for (const std::string& word : options.kernels) {
    const bool gpu = factory_named(word).on_gpu;
    if (on_gpu.value_or(gpu) != gpu)
      throw UsageError(fmt::format("--backend {} computes on the {}: one calibration is of hosts or of GPUs",
                                   word, gpu ? "GPU" : "host"));
    on_gpu = gpu;
  }
  if (on_gpu.value_or(false)) return true;
  if (options.kernels.size() > 1)
    throw UsageError("a calibration of hosts is of one kernel; name one with --backend");
  if (!options.devices.empty() || !options.transports.empty())
    throw UsageError("--devices and --transport are of GPUs: give --device cuda, or leave them out");
  return false;
}

DType dtype_of(const CalibrateOptions& options, bool on_gpu) {
  return options.dtype.value_or(on_gpu ? DType::bf16 : DType::fp32);
}

Scope scope_of(const CalibrateOptions& options, const Machine& machine, RankDevice& device,
               comm::Communicator& control) {
  Scope scope;
  scope.on_gpu = device.card().has_value();
  scope.quick = options.quick;
  scope.kernels = kernels_of(options, scope.on_gpu, device, control);
  if (!scope.on_gpu) return scope;
  RankCard mine;
  device.card()->info.name.copy(mine.name.data(), mine.name.size() - 1);
  device.card()->state.bus_id.copy(mine.bus_id.data(), mine.bus_id.size() - 1);
  std::vector<RankCard> cards(static_cast<std::size_t>(control.size()));
  control.all_gather(&mine, cards.data(), sizeof mine);
  scope.transports = transports_of(options, machine, ranks_share_cards(cards, machine), control);
  return scope;
}

}  // namespace usp::measure
