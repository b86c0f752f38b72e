// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/run_request.hpp"
#include "usp/runtime/verify.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// What `usp run` reports.
struct RunSummary {
  RunRequest request;
  AttentionPlan plan;
  std::string digest;  ///< of the plan as executed
  RunResult run;
  std::optional<CallErrors> errors;  ///< empty: not verified
  Tolerance tolerance;
};

/// What a run is known to be. A run whose bytes are not the planned ones is wrong without any --verify.
enum class RunVerdict {
  verified,
  wrong,           ///< results beyond their bounds, or bytes that were not planned
  not_verifiable,  ///< terms overflow the type, so that the comparison is undefined
  not_verified     ///< results were not compared
};
[[nodiscard]] RunVerdict verdict_of(const RunSummary& summary);
[[nodiscard]] std::string_view verdict_name(RunVerdict verdict);

[[nodiscard]] std::string run_text(const RunSummary& summary);
/// One JSON object (schema: configs/schema/run.v2.schema.json).
[[nodiscard]] std::string run_json(const RunSummary& summary);
/// Why the run is wrong, or cannot be verified: results beyond their bounds, terms that overflow the type,
/// bytes that were not planned. Empty for other verdicts.
[[nodiscard]] std::string run_fault(const RunSummary& summary);

/// Writes out.npy, lse.npy and, when training, dq.npy, dk.npy, dv.npy (d_sink.npy) into a folder, global and
/// in token order, in the plan's type (lse in the accumulator type, d_sink in f8). Makes the folder. Throws
/// EnvironmentError.
void write_results(const std::string& folder, const AttentionPlan& plan, const Documents& documents,
                   const RunResult& run);
/// The files that write_results may write into a folder.
[[nodiscard]] std::vector<std::string> result_files(const std::string& folder);
/// Makes the folder and throws the EnvironmentError that write_results would, before there are results.
void check_results_folder(const std::string& folder);
/// A global tensor from a .npy file, converted to the plan's type; u2 is read as the bits of bf16, for plans
/// in bf16. Throws InvalidInput naming the file when it cannot be read or has another shape, and the first
/// index that is not a finite number of the plan's type.
[[nodiscard]] HostTensor read_tensor(const std::string& path, DType dtype, const std::vector<i64>& shape);

}  // namespace usp
