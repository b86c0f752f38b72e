// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/nccl_tests.hpp"

#include <set>
#include <string>
#include <vector>

/// Single lines of nccl-tests output. Not installed.
namespace usp::topology::nccl_tests {

struct RankLine {
  int rank = 0;
  int group = 0;
  std::string host;
  std::string device;
  long line = 0;
};

/// "Rank 0 Group 0 Pid 12 on host device 0 [0000:1b:00] NVIDIA H100"; Group, Pid and "on host" may be absent,
/// and
/// "(node 1)" may follow at the end instead.
[[nodiscard]] RankLine read_rank_line(const std::string& file, long line,
                                      const std::vector<std::string>& tokens);

/// Where a row begins among these tokens: two whole numbers and the name of a data type; their number where
/// none does.
[[nodiscard]] std::size_t find_row(const std::vector<std::string>& tokens);

/// A finite number of at least zero; throws InvalidInput otherwise.
[[nodiscard]] double number(const std::string& file, long line, const std::string& token);

/// The table of measurements: remembers the header to read rows by it.
class Table {
 public:
  explicit Table(std::string file) : file_(std::move(file)) {}
  void read_places(long line, const std::vector<std::string>& tokens);  ///< "out-of-place  in-place"
  void read_header(long line, const std::vector<std::string>& tokens);
  void read_units(long line, const std::vector<std::string>& tokens);
  /// `previous` is the row before, or null.
  [[nodiscard]] NcclTestsRow read_row(long line, const std::vector<std::string>& tokens,
                                      const NcclTestsRow* previous);
  [[nodiscard]] std::size_t blank_cells() const { return blank_cells_; }  ///< rows with blank columns
  [[nodiscard]] std::size_t stamped_rows() const {
    return stamped_rows_;
  }                                                     ///< rows with a time stamp at the end
  [[nodiscard]] int cycles() const { return cycles_; }  ///< runs over the sizes

 private:
  enum class Check { none, wrong, error };
  struct Side {
    std::size_t first = 0;  // column of its time
    Check check = Check::none;
  };
  [[noreturn]] void fail(long line, const std::string& token, const std::string& problem) const;
  [[nodiscard]] std::optional<NcclTestsTiming> read_side(long line, const std::vector<std::string>& tokens,
                                                         const Side& side, std::int64_t size_bytes) const;
  void read_sides(long line, const std::vector<std::string>& tokens, std::size_t at);

  [[nodiscard]] std::vector<std::string> aligned(long line, std::vector<std::string> tokens);
  void check_size(long line, const NcclTestsRow& row) const;
  void place(long line, const NcclTestsRow* previous, NcclTestsRow& row);

  std::string file_;
  std::vector<std::string> columns_;
  std::vector<Side> sides_;
  bool in_place_only_ = false;
  bool new_header_ = false;
  std::size_t blank_cells_ = 0, stamped_rows_ = 0;
  int cycle_ = 1, cycles_ = 1;
  std::set<std::int64_t> sizes_;  ///< that the block has had
};

}  // namespace usp::topology::nccl_tests
