// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp::topology {

/// One side (out of place or in place) of a row. Bandwidths as nccl-tests prints them, GB/s (1e9 bytes/s).
struct NcclTestsTiming {
  double time_us = 0;
  double algbw_gb_s = 0;
  double busbw_gb_s = 0;
  std::optional<std::int64_t> wrong;  ///< results that failed the check; empty: not checked
};

struct NcclTestsRow {
  int block = 0;                ///< rows of one block differ in size only
  std::int64_t size_bytes = 0;  ///< for all-to-all the total per rank
  std::int64_t count = 0;       ///< elements
  std::string type;
  std::string redop;  ///< empty: the file has no such column
  int root = -1;
  std::optional<NcclTestsTiming> out_of_place;
  std::optional<NcclTestsTiming> in_place;
};

/// A run of one collective of nccl-tests.
struct NcclTestsResult {
  std::optional<std::string>
      operation;                   ///< "all_reduce", "alltoall", ...; as the program is called, less "_perf"
  std::optional<int> ranks;        ///< empty: the file lists none, or its list is cut at the end
  std::vector<int> missing_ranks;  ///< below `ranks`, but not listed (elided)
  std::vector<std::string> hosts;  ///< in order of appearance; empty: not named
  std::vector<std::string> device_names;  ///< distinct, in order of appearance
  std::vector<NcclTestsRow> rows;         ///< at least one
  std::optional<double> average_busbw_gb_s;
  std::vector<std::string> notes;
};

/// Reads the text that an nccl-tests program prints; columns are found by their names, so old and new sets
/// both do.
///
/// Lines that belong to others (NCCL's log, "..." of an elided listing) are skipped and noted. Where no line
/// names the program, reduction, root and the ratio of bus to algorithm bandwidth identify all_reduce,
/// reduce_scatter, reduce and broadcast among more than two ranks; else the operation stays unknown.
///
/// Throws InvalidInput (line, token): ranks that are all 0 (a program built without MPI: many runs of one
/// rank), one rank only, several communicators or tests in one file, wrong results, sizes that do not rise
/// inside a block, bandwidths that do not follow from size and time, no rows.
[[nodiscard]] NcclTestsResult read_nccl_tests(const std::string& text, const std::string& file);

}  // namespace usp::topology
