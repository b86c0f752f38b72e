// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace usp::device {

/// What the driver says of a GPU beside DeviceInfo, for the record of a measurement; what it does not say is
/// empty.
struct CardState {
  std::string bus_id;                 ///< on its host
  std::optional<double> clock_hz;     ///< greatest of its multiprocessors
  std::optional<double> power_w;      ///< limit that is enforced
  std::optional<double> memory_gb_s;  ///< of its memory's clock and width
  int nvlinks = 0;                    ///< that are up
  bool switched = false;              ///< they lead to an NVSwitch
  std::string driver;                 ///< its version
};

/// By CUDA, and by libnvidia-ml.so.1 where it can be loaded. Throws EnvironmentError when there is no such
/// device.
[[nodiscard]] CardState card_state(int device);

}  // namespace usp::device
