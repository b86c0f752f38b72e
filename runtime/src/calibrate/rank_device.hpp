// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange.hpp"
#include "span_clock.hpp"

#include "usp/device/call_stream.hpp"
#include "usp/device/card.hpp"
#include "usp/device/device.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/runtime/calibrate.hpp"
#include "usp/schedule/transport.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace usp::measure {

/// The GPU of a rank.
struct Card {
  device::DeviceInfo info;
  device::CardState state;
};

/// What carries payload between the ranks, and the memory that it goes through.
struct Lane {
  std::unique_ptr<comm::DataPlane> plane;
  ExchangeMemory memory;
};

/// What one rank computes with and sends over: the host, or one of its GPUs.
class RankDevice {
 public:
  /// Takes the GPU as a run does (CalibrateOptions::devices). `control` outlives it.
  RankDevice(const CalibrateOptions& options, bool on_gpu, comm::Communicator& control);

  [[nodiscard]] kernels::Memory& memory() { return *memory_; }
  /// Made at the first call. Throws EnvironmentError where the machine lacks what it needs.
  [[nodiscard]] kernels::AttentionKernel& kernel(const std::string& word);
  /// Collective at the first call for a transport; empty: what joins ranks of hosts.
  [[nodiscard]] Lane& lane(std::optional<Transport> transport);
  [[nodiscard]] const std::optional<Card>& card() const { return card_; }

 private:
  comm::Communicator& control_;
  std::optional<device::CallStream> stream_;
  std::unique_ptr<kernels::Memory> own_memory_;  ///< of a GPU
  kernels::Memory* memory_ = nullptr;
  std::optional<Card> card_;
  std::map<std::string, std::unique_ptr<kernels::AttentionKernel>> kernels_;
  std::map<std::optional<Transport>, Lane> lanes_;
};

}  // namespace usp::measure
