// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/step_score.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace usp {
namespace {

struct TextColumn {
  const char* name;
  std::string StepRun::*field;
};
constexpr TextColumn texts[] = {{"id", &StepRun::id},
                                {"source", &StepRun::origin},
                                {"model", &StepRun::model},
                                {"gpu", &StepRun::gpu},
                                {"interconnect", &StepRun::interconnect},
                                {"dtype", &StepRun::dtype},
                                {"sp_tp", &StepRun::sequence_parallel},
                                {"cp_method", &StepRun::cp_method},
                                {"recompute", &StepRun::recompute},
                                {"offload", &StepRun::offload},
                                {"kernels", &StepRun::kernels},
                                {"notes", &StepRun::notes},
                                {"printed", &StepRun::printed}};
struct CountColumn {
  const char* name;
  std::optional<i64> StepRun::*field;
  i64 least = 1, most = i64{1} << 40;
};
constexpr i64 most_layers = 100000, most_zero_stage = 3;
constexpr CountColumn counts[] = {{"layers", &StepRun::layers, 1, most_layers},
                                  {"hidden", &StepRun::hidden},
                                  {"heads", &StepRun::heads},
                                  {"kv_heads", &StepRun::kv_heads},
                                  {"ffn", &StepRun::ffn},
                                  {"vocab", &StepRun::vocab},
                                  {"gpus", &StepRun::gpus, 1, max_ranks},
                                  {"gpus_per_node", &StepRun::gpus_per_node, 1, max_ranks},
                                  {"seq", &StepRun::seq},
                                  {"micro_batch", &StepRun::micro_batch},
                                  {"tp", &StepRun::tensor, 1, max_ranks},
                                  {"global_batch", &StepRun::global_batch},
                                  {"pp", &StepRun::pipeline, 1, max_ranks},
                                  {"vpp", &StepRun::virtual_stages, 1, most_layers},
                                  {"cp", &StepRun::context, 1, max_ranks},
                                  {"ep", &StepRun::expert, 1, max_ranks},
                                  {"dp", &StepRun::data, 1, max_ranks},
                                  {"zero", &StepRun::zero, 0, most_zero_stage}};
struct RateColumn {
  const char* name;
  std::optional<double> StepRun::*field;
};
constexpr RateColumn rates[] = {{"tokens_per_s_per_gpu", &StepRun::tokens_s},
                                {"tflops_per_gpu", &StepRun::tflops},
                                {"step_s", &StepRun::step_s},
                                {"peak_memory_gib", &StepRun::memory_gib}};
constexpr double least_rate = 1e-6;
/// Of the vocabulary, but not read: others say the same, or nothing that is priced.
constexpr const char* unread[] = {"experts", "topk", "shard"};

/// Cells of a line; a cell in double quotes may hold commas, and doubled quotes for one.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += '"', ++i;
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += line[i];
  }
  return cells;
}

template <class T>
T number(const std::string& cell, const Where& where) {
  T value{};
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size() || !(value >= 0) ||
      !(value < T{1000000000000000}))
    throw InvalidInput(where,
                       fmt::format("'{}' is no number; leave the cell empty where it is not stated", cell));
  return value;
}

/// "45.7% (hardware)" or "0.457"; empty where neither.
std::optional<double> ratio(const std::string& cell) {
  const double value = std::strtod(cell.c_str(), nullptr);
  if (!(value > 0)) return std::nullopt;
  return cell.find('%') != std::string::npos || value > 1 ? value / 100 : value;
}

/// "memory printed as GB", "memory headed GB": 10^9 bytes.
bool printed_in_gb(const std::string& notes) {
  const std::vector<std::string> clauses = split(notes, ';');
  return std::any_of(clauses.begin(), clauses.end(), [](const std::string& clause) {
    return clause.find("memory") != std::string::npos && clause.find(" GB") != std::string::npos;
  });
}

void check_column(const std::string& name, const Where& where) {
  const auto named = [&](const auto& column) { return name == column.name; };
  const bool known =
      name == "mfu" || std::any_of(std::begin(texts), std::end(texts), named) ||
      std::any_of(std::begin(counts), std::end(counts), named) ||
      std::any_of(std::begin(rates), std::end(rates), named) ||
      std::any_of(std::begin(unread), std::end(unread), [&](const char* n) { return name == n; });
  if (!known) throw InvalidInput(where, "the column is not of the vocabulary of step tables");
}

void set_cell(StepRun& run, const std::string& name, const std::string& cell, const Where& where) {
  for (const TextColumn& column : texts)
    if (name == column.name) run.*column.field = cell;
  if (cell.empty()) return;
  if (name == "mfu") run.mfu = ratio(cell);
  for (const CountColumn& column : counts)
    if (name == column.name) {
      const i64 count = number<i64>(cell, where);
      if (count < column.least || count > column.most)
        throw InvalidInput(where, fmt::format("is {}; it must be {} to {}, or empty where it is not stated",
                                              count, column.least, column.most));
      run.*column.field = count;
    }
  for (const RateColumn& column : rates)
    if (name == column.name) {
      const auto rate = number<double>(cell, where);
      if (rate < least_rate)
        throw InvalidInput(
            where, fmt::format("'{}' is no measurement; leave the cell empty where it is not stated", cell));
      run.*column.field = rate;
    }
}

}  // namespace

bool is_step_table(const std::string& text) {
  bool found = false, header = true;
  for_each_line(text, [&](long, std::string_view line) {
    const std::string content = trim(line);
    if (content.empty() || content.front() == '#' || !header) return;
    header = false;
    for (const std::string& name : cells_of(content)) found |= trim(name) == "tokens_per_s_per_gpu";
  });
  return found;
}

std::vector<StepRun> parse_step_table(const std::string& text, const std::string& file) {
  std::vector<StepRun> runs;
  std::vector<std::string> names;
  for_each_line(text, [&](long line, std::string_view raw) {
    const std::string content = trim(raw);
    if (content.empty() || content.front() == '#') return;
    std::vector<std::string> cells = cells_of(content);
    if (names.empty()) {
      for (std::size_t i = 0; i < cells.size(); ++i) {
        check_column(cells[i] = trim(cells[i]), {file, line, cells[i]});
        if (std::find(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(i), cells[i]) !=
            cells.begin() + static_cast<std::ptrdiff_t>(i))
          throw InvalidInput({file, line, cells[i]}, "names two columns; keep one of them");
      }
      for (const char* needed : {"id", "model", "gpus", "gpu", "seq", "dtype"})
        if (std::find(cells.begin(), cells.end(), needed) == cells.end())
          throw InvalidInput({file, line, needed}, "the column is missing; every step table needs it");
      names = std::move(cells);
      return;
    }
    if (cells.size() != names.size())
      throw InvalidInput({file, line, ""},
                         fmt::format("the row has {} cells, the header {}", cells.size(), names.size()));
    StepRun run;
    run.line = line;
    for (std::size_t i = 0; i < names.size(); ++i)
      set_cell(run, names[i], trim(cells[i]), {file, line, names[i]});
    if (run.memory_gib && printed_in_gb(run.notes)) *run.memory_gib *= 1e9 / 0x1p30;
    if (run.id.empty()) throw InvalidInput({file, line, "id"}, "is empty; name every run");
    runs.push_back(std::move(run));
  });
  if (runs.empty()) throw InvalidInput({file, 0, ""}, "no rows below the header; nothing to score");
  return runs;
}

}  // namespace usp
