// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace usp::kernels {

/// Called between tiles, and while a call waits for a block of keys, so that transfers advance meanwhile (MPI
/// makes no progress of its own).
struct Progress {
  void (*call)(void*) = nullptr;
  void* context = nullptr;
  void operator()() const {
    if (call != nullptr) call(context);
  }
};

}  // namespace usp::kernels
