// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace usp::comm {

/// What went wrong between ranks (exit 5). Every rank of the job throws the same one. Ranks are
/// those of the whole job, also where a group noticed.
struct CommunicationFault {
  std::string operation;     ///< e.g. "kv_exchange", "barrier"
  std::int32_t tick = -1;    ///< -1: outside a schedule
  int rank = -1;             ///< that noticed
  std::vector<int> missing;  ///< peers that did not arrive or that failed
  std::string message;       ///< the whole sentence, shown to the user
};

class CommunicationError : public Error {
 public:
  explicit CommunicationError(CommunicationFault fault)
      : Error(ExitCode::environment, fault.message), fault_(std::move(fault)) {}
  [[nodiscard]] const CommunicationFault& fault() const noexcept { return fault_; }

 private:
  CommunicationFault fault_;
};

/// Ranks do not hold the same thing (exit 5): found before the first exchange.
class DisagreementError : public Error {
 public:
  DisagreementError(std::string field, std::vector<int> ranks, const std::string& text)
      : Error(ExitCode::environment, text), field_(std::move(field)), ranks_(std::move(ranks)) {}
  [[nodiscard]] const std::string& field() const noexcept { return field_; }
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::string field_;
  std::vector<int> ranks_;
};

}  // namespace usp::comm
