// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

namespace usp::comm {

/// N ranks without payload, played one after another on one thread: messages are counted and matched, no byte
/// moves, waits return at once. Collectives and groups are refused (InternalError).
class DryRun {
 public:
  explicit DryRun(int ranks);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;
  /// The communicator of one rank; lives as long as this.
  [[nodiscard]] Communicator& rank(int rank);
  /// Every send met its receive with equal bytes, and nothing is left over. Throws InternalError that names
  /// the first message that does not match.
  void check() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace usp::comm
