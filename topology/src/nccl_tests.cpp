// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/nccl_tests.hpp"

#include "nccl_tests_lines.hpp"
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace usp::topology {
namespace {

using nccl_tests::RankLine;
using nccl_tests::Table;

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)), table_(file_) {}

  NcclTestsResult read(const std::string& text) {
    CleanText clean = clean_text(text, file_);
    result_.notes = std::move(clean.notes);
    for_each_line(clean.text,
                  [&](long number, std::string_view line) { read_line(number, std::string(line)); });
    conclude_ranks();
    if (result_.rows.empty())
      throw InvalidInput({file_, 0, ""},
                         "no row of measurements below a header of nccl-tests (size, count, type, time)");
    conclude_operation();
    note_table();
    if (empty_rows_ > 0)
      result_.notes.push_back(
          fmt::format("{} rows of 0 bytes, which carry nothing, are left out", empty_rows_));
    if (!ended_)
      result_.notes.emplace_back("the closing lines of nccl-tests are missing: the text may be cut");
    note_ignored(result_.notes, ignored_);
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(long line, const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, line, excerpt(token)}, problem);
  }

  void read_line(long number, const std::string& line) {
    std::vector<std::string> tokens = split_blanks(line);
    if (tokens.empty()) return;
    const bool comment = tokens[0][0] == '#';
    if (comment) {
      tokens[0].erase(0, 1);
      if (tokens[0].empty()) tokens.erase(tokens.begin());
      if (tokens.empty()) return;
    }
    if (tokens[0] == "Rank" && tokens.size() > 1) return read_rank(number, tokens);
    if (tokens[0] == "...") {
      elided_after_ = ranks_.size();
      if (ranks_.empty() || !result_.rows.empty()) ignore(number, line);
      return;
    }
    if (comment || lost_its_hash(tokens)) return read_comment(number, line, tokens);
    if (tokens[0].find_first_not_of("0123456789") == std::string::npos) return read_row(number, tokens);
    ignore(number, line);
  }

  /// Web pages eat the '#' of lines: these words begin no row.
  static bool lost_its_hash(const std::vector<std::string>& tokens) {
    if (tokens[0] == "size") return tokens.size() > 1 && tokens[1] == "count";
    if (tokens[0] == "Out" || tokens[0] == "Avg" || tokens[0] == "Collective") return tokens.size() > 3;
    return tokens[0] == "(B)" || tokens[0] == "out-of-place" || tokens[0] == "in-place" ||
           tokens[0] == "nThread" || tokens[0] == "Using";
  }

  /// Where a smallest size below one element per rank was asked for, the first rows are of 0 bytes.
  void read_row(long number, const std::vector<std::string>& tokens) {
    NcclTestsRow row = table_.read_row(number, tokens, result_.rows.empty() ? nullptr : &result_.rows.back());
    if (row.size_bytes > 0)
      result_.rows.push_back(std::move(row));
    else
      ++empty_rows_;
  }

  void note_table() {
    if (table_.blank_cells() > 0)
      result_.notes.push_back(fmt::format("{} rows leave redop or root blank", table_.blank_cells()));
    if (table_.stamped_rows() > 0)
      result_.notes.push_back(
          fmt::format("stripped time stamps behind {}", counted(table_.stamped_rows(), "row")));
    if (table_.cycles() > 1)
      result_.notes.push_back(
          fmt::format("sizes repeat: the test ran {} times, and its rows are samples of the same points",
                      table_.cycles()));
  }

  void ignore(long number, const std::string& line) {
    std::vector<std::string> tokens = split_blanks(line);
    // A damaged tag may be glued to the first number.
    const std::string first = tokens.front();
    tokens.front().erase(0, first.find_last_of(":>]|") + 1);
    if (tokens.front().empty()) tokens.erase(tokens.begin());
    if (nccl_tests::find_row(tokens) < tokens.size())
      fail(number, first, "stands before a row of measurements; is the line a mixture of two?");
    ignored_.push_back(fmt::format("line {} ignored: '{}'", number, excerpt(trim(line))));
  }

  void read_comment(long number, const std::string& line, const std::vector<std::string>& tokens) {
    const std::string text = join(tokens, " ");
    if (tokens[0] == "size") return table_.read_header(number, tokens);
    if (tokens[0][0] == '(') return table_.read_units(number, tokens);
    if (text.rfind("Collective test starting: ", 0) == 0) return read_start(number, tokens[3]);
    if (text.rfind("Out of bounds values", 0) == 0) return read_bounds(number, tokens);
    if (text.rfind("Avg bus bandwidth", 0) == 0) return read_average(number, tokens);
    if (text.rfind("Truncated", 0) == 0) {
      result_.notes.push_back(fmt::format("line {}: rows were left out ('{}')", number, excerpt(text)));
      return;
    }
    if (tokens[0] == "out-of-place" || tokens[0] == "in-place") return table_.read_places(number, tokens);
    const bool known = tokens[0] == "nThread" || text.rfind("Using devices", 0) == 0 ||
                       tokens[0] == "nccl-tests" || text.rfind("Collective test concluded", 0) == 0;
    if (!known) ignore(number, line);
  }

  void read_start(long number, const std::string& program) {
    const std::size_t end = program.rfind("_perf");
    if (end == std::string::npos || end == 0 || end + 5 != program.size())
      fail(number, program, "not the name of an nccl-tests program (all_reduce_perf, alltoall_perf, ...)");
    if (result_.operation || !result_.rows.empty())
      fail(number, program, "a second test begins here; give one test a file");
    const std::string name = program.substr(0, end);
    result_.operation = name == "alltoall" ? "all_to_all" : excerpt(name);
  }

  void read_bounds(long number, const std::vector<std::string>& tokens) {
    ended_ = true;
    for (const auto& token : tokens)
      if (token == "FAILED" || (small_number(token, 9) && *small_number(token, 9) != 0))
        fail(number, token, "the run computed wrong results: its times mean nothing");
  }

  /// "# Avg bus bandwidth    : 448.13 GB/s"; the unit is new and may be absent.
  void read_average(long number, const std::vector<std::string>& tokens) {
    ended_ = true;
    const auto colon = std::find(tokens.begin(), tokens.end(), ":");
    if (colon == tokens.end() || colon + 1 == tokens.end())
      fail(number, tokens.back(), "the average has no value");
    if (*(colon + 1) != "N/A") result_.average_busbw_gb_s = nccl_tests::number(file_, number, *(colon + 1));
    if (colon + 2 != tokens.end() && *(colon + 2) != "GB/s")
      fail(number, *(colon + 2), "the average must be in GB/s");
  }

  void read_rank(long number, const std::vector<std::string>& tokens) {
    if (!result_.rows.empty()) fail(number, tokens[0], "a second run begins here; give one run a file");
    const RankLine line = nccl_tests::read_rank_line(file_, number, tokens);
    if (line.group != 0)
      fail(number, std::to_string(line.group),
           "ranks of a second group: several communicators run at once share links");
    ranks_.push_back(line);
    const auto add = [](std::vector<std::string>& list, std::set<std::string>& seen,
                        const std::string& name) {
      if (!name.empty() && seen.insert(name).second) list.push_back(name);
    };
    add(result_.hosts, hosts_, line.host);
    add(result_.device_names, device_names_, line.device);
  }

  /// Ranks must rise; what is between the listed ones is missing. All 0 means that no rank knew of another.
  void conclude_ranks() {
    if (ranks_.empty()) {
      result_.notes.emplace_back("the text lists no ranks: their number is unknown");
      return;
    }
    const bool all_zero =
        std::all_of(ranks_.begin(), ranks_.end(), [](const RankLine& r) { return r.rank == 0; });
    const bool cut = elided_after_ && *elided_after_ == ranks_.size();
    if (all_zero && ranks_.size() > 1)
      fail(ranks_[1].line, "Rank 0",
           fmt::format("{} runs of one rank each: nccl-tests was built without MPI (MPI=1), so nothing was "
                       "sent between devices; this holds no curve",
                       ranks_.size()));
    if (all_zero && !cut)
      fail(ranks_[0].line, "Rank 0", "a run of one rank sends nothing to anybody; this holds no curve");
    int next = 0;
    for (const RankLine& line : ranks_) {
      if (line.rank < next)
        fail(line.line, fmt::format("Rank {}", line.rank),
             "ranks must rise; is this the output of several runs?");
      for (; next < line.rank; ++next) result_.missing_ranks.push_back(next);
      ++next;
    }
    if (!result_.missing_ranks.empty())
      result_.notes.push_back(
          fmt::format("{} of {} ranks are not listed", result_.missing_ranks.size(), next));
    if (cut) {
      result_.notes.emplace_back("the list of ranks is cut at its end: their number is unknown");
      return;
    }
    result_.ranks = next;
  }

  /// Median of bus over algorithm bandwidth, from the rows where rounding does not matter; empty without any.
  [[nodiscard]] std::optional<double> bus_ratio() const {
    std::vector<double> ratios;
    for (const NcclTestsRow& row : result_.rows)
      for (const auto* side : {&row.out_of_place, &row.in_place})
        if (*side && (*side)->algbw_gb_s >= 1.0) ratios.push_back((*side)->busbw_gb_s / (*side)->algbw_gb_s);
    if (ratios.empty()) return std::nullopt;
    const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    return *middle;
  }

  void conclude_operation() {
    if (result_.operation) return;
    const auto ratio = bus_ratio();
    const NcclTestsRow& row = result_.rows.front();
    if (ratio && result_.ranks && *result_.ranks > 2 && !row.redop.empty()) {
      const double n = *result_.ranks;
      const auto near = [&](double expected) { return std::abs(*ratio / expected - 1.0) < 0.01; };
      const bool reduces = row.redop != "none";
      if (reduces && row.root < 0 && near(2 * (n - 1) / n)) result_.operation = "all_reduce";
      if (reduces && row.root < 0 && near((n - 1) / n)) result_.operation = "reduce_scatter";
      if (reduces && row.root >= 0 && near(1.0)) result_.operation = "reduce";
      if (!reduces && row.root >= 0 && near(1.0)) result_.operation = "broadcast";
    }
    result_.notes.push_back(
        result_.operation
            ? fmt::format(
                  "no line names the test: {} follows from its columns and from bus over algorithm bandwidth",
                  *result_.operation)
            : "no line names the test: the operation is unknown");
  }

  std::string file_;
  Table table_;
  NcclTestsResult result_;
  std::vector<RankLine> ranks_;
  std::set<std::string> hosts_, device_names_;  // as the result lists them
  std::optional<std::size_t> elided_after_;     // ranks listed before the last "..."
  std::vector<std::string> ignored_;
  bool ended_ = false;
  std::size_t empty_rows_ = 0;
};

}  // namespace

NcclTestsResult read_nccl_tests(const std::string& text, const std::string& file) {
  return Reader(file).read(text);
}

}  // namespace usp::topology
