// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "assemble.hpp"
#include "measurements.hpp"
#include "partial_file.hpp"

#include "usp/runtime/calibrate.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::measure {

/// One rank's part in a calibration: goes through the parts, within the time, and keeps them. Collective in
/// every call.
class RankLab {
 public:
  RankLab(const CalibrateOptions& options, comm::Communicator& control);

  /// Rank 0 returns all that was measured; `resumed` counts the parts of the partial file.
  [[nodiscard]] Measured measure_all(std::size_t& resumed);

 private:
  [[nodiscard]] bool root() const { return control_.rank() == 0; }
  [[nodiscard]] Settings settings() const;
  /// Throws on rank 0, which ends the others.
  void check_interrupt() const;
  /// For people, on rank 0.
  void note(const std::string& text) const;
  void name_shared_cores() const;
  void name_left_out(std::size_t skipped, const std::string& first) const;
  void name_unmeasured(const Part& part) const;
  void resume();
  void keep() const;
  [[nodiscard]] bool begin_part(std::size_t index);

  const CalibrateOptions& options_;
  comm::Communicator& control_;
  RankDevice device_;
  Machine machine_;
  Scope scope_;
  DType dtype_;
  std::unique_ptr<SpanClock> clock_;
  Timer timer_;
  std::vector<Part> parts_;
  Results results_;
  double part_end_s_ = 0;
};

}  // namespace usp::measure
