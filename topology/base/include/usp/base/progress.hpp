// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace usp {

/// Hears how far long work is, from the thread that does it. Calls come often: they must be cheap.
class WorkProgress {
 public:
  WorkProgress() = default;
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;
  virtual ~WorkProgress() = default;
  /// @param done of `total` units, which `units` names: "points"
  virtual void reached(std::int64_t done, std::int64_t total, const char* units) = 0;
};

inline void tell(WorkProgress* progress, std::int64_t done, std::int64_t total, const char* units) {
  if (progress != nullptr) progress->reached(done, total, units);
}

/// Reports progress in larger units while parts report theirs.
class ProgressRelay : public WorkProgress {
 public:
  explicit ProgressRelay(WorkProgress* to) : to_(to) {}
  void at(std::int64_t done, std::int64_t total, const char* units) {
    done_ = done, total_ = total, units_ = units;
    tell(to_, done, total, units);
  }
  void reached(std::int64_t /*done*/, std::int64_t /*total*/, const char* /*units*/) override {
    tell(to_, done_, total_, units_);
  }

 private:
  WorkProgress* to_;
  std::int64_t done_ = 0, total_ = 1;
  const char* units_ = "parts";
};

}  // namespace usp
