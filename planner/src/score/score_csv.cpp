// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/score.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

namespace usp {
namespace {

constexpr std::array<const char*, 15> columns = {
    "machine",  "world",    "direction", "causal",  "dtype",  "batch",    "seq",        "heads",
    "kv_heads", "head_dim", "ring",      "ulysses", "layout", "exchange", "iters_per_s"};
constexpr std::array<const char*, 4> optional_columns = {"library", "backend", "transport", "synchronised"};

class Line {
 public:
  Line(const std::string& file, long number, const std::vector<std::string>& names,
       std::vector<std::string> cells)
      : file_(file), number_(number), names_(names), cells_(std::move(cells)) {
    if (cells_.size() != names_.size())
      throw InvalidInput({file_, number_, ""},
                         fmt::format("the row has {} cells, the header {}; give every column a value",
                                     cells_.size(), names_.size()));
    for (std::string& cell : cells_) cell = trim(cell);
  }

  [[nodiscard]] const std::string& text(const char* name) const {
    const auto at = std::find(names_.begin(), names_.end(), name);
    const std::string& cell = cells_[static_cast<std::size_t>(at - names_.begin())];
    if (cell.empty()) fail(name, "is empty; give a value");
    return cell;
  }
  [[nodiscard]] bool has(const char* name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  [[nodiscard]] std::int64_t integer(const char* name, std::int64_t most) const {
    const std::string& cell = text(name);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc{} || end != cell.data() + cell.size() || value < 1 || value > most)
      fail(name, fmt::format("'{}' is not a whole number from 1 to {}", cell, most));
    return value;
  }
  /// From one call in eleven days to one per nanosecond.
  [[nodiscard]] double rate_per_s(const char* name) const {
    constexpr double least = 1e-6, most = 1e9;
    const std::string& cell = text(name);
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc{} || end != cell.data() + cell.size() || !(value >= least && value <= most))
      fail(name, fmt::format("'{}' is neither a number from {:g} to {:g} nor OOM", cell, least, most));
    return value;
  }
  template <class E>
  [[nodiscard]] E one_of(const char* name, const std::vector<std::pair<const char*, E>>& known) const {
    const std::string& cell = text(name);
    std::vector<std::string> all;
    for (const auto& [word, value] : known) {
      if (cell == word) return value;
      all.emplace_back(word);
    }
    fail(name, fmt::format("'{}' is not one of {}", cell, fmt::join(all, ", ")));
  }
  [[noreturn]] void fail(const char* name, const std::string& problem) const {
    throw InvalidInput({file_, number_, name}, problem);
  }

 private:
  const std::string& file_;
  long number_;
  const std::vector<std::string>& names_;
  std::vector<std::string> cells_;
};

std::vector<std::string> read_header(const std::string& file, long number, const std::string& text) {
  std::vector<std::string> names = split(text, ',');
  for (std::string& name : names) name = trim(name);
  for (const std::string& name : names) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end() &&
        std::find(optional_columns.begin(), optional_columns.end(), name) == optional_columns.end())
      throw InvalidInput({file, number, name}, "the column is not known; known are " +
                                                   join({columns.begin(), columns.end()}, ", "));
    if (std::count(names.begin(), names.end(), name) > 1)
      throw InvalidInput({file, number, name}, "the column is named twice; keep one");
  }
  for (const char* name : columns)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InvalidInput({file, number, name}, "the column is missing; every row needs it");
  return names;
}

ScoreRow read_row(const Line& line, long number) {
  ScoreRow row;
  row.line = number;
  row.machine = line.text("machine");
  row.world = static_cast<int>(line.integer("world", max_ranks));
  using D = ScoreRow::Direction;
  row.direction = line.one_of<D>(
      "direction",
      {{"forward", D::forward}, {"backward", D::backward}, {"forward_backward", D::forward_backward}});
  row.causal = line.one_of<bool>("causal", {{"true", true}, {"false", false}});
  row.dtype = line.one_of<ScoreRow::Type>(
      "dtype",
      {{"bf16", ScoreRow::Type::bf16}, {"fp16", ScoreRow::Type::fp16}, {"fp32", ScoreRow::Type::fp32}});
  row.batch = line.integer("batch", max_batch);
  row.seq = line.integer("seq", max_tokens);
  row.heads = line.integer("heads", max_heads);
  row.kv_heads = line.integer("kv_heads", row.heads);
  row.head_dim = line.integer("head_dim", max_head_dim);
  row.ring = static_cast<int>(line.integer("ring", std::min(row.world, max_degree)));
  row.ulysses = static_cast<int>(line.integer("ulysses", std::min(row.world, max_degree)));
  using L = ScoreRow::Layout;
  row.layout = line.one_of<L>(
      "layout", {{"contiguous", L::contiguous}, {"zigzag", L::zigzag}, {"striped", L::striped}});
  using X = ScoreRow::Exchange;
  row.exchange = line.one_of<X>("exchange", {{"qkvpack", X::qkvpack}, {"no_packed", X::no_packed}});
  using Library = ScoreRow::Library;
  if (line.has("library"))
    row.library = line.one_of<Library>("library", {{"yunchang", Library::yunchang}, {"usp", Library::usp}});
  if (line.has("backend")) {
    std::vector<std::pair<const char*, Backend>> words;
    for (const Backend backend : backends()) words.emplace_back(backend->word.data(), backend);
    row.backend = line.one_of<Backend>("backend", words);
    if (row.library != Library::usp) line.fail("backend", "is of this runtime; give library usp beside it");
  }
  if (line.has("transport"))
    row.transport = line.one_of<Transport>(
        "transport", {{"copy_engine", Transport::copy_engine}, {"nccl", Transport::nccl}});
  row.synchronised = row.library == Library::usp || row.exchange == X::no_packed;
  if (line.has("synchronised"))
    row.synchronised = line.one_of<bool>("synchronised", {{"true", true}, {"false", false}});
  if (static_cast<std::int64_t>(row.ring) * row.ulysses != row.world)
    line.fail("ring",
              fmt::format("ring {} times ulysses {} is not world {}", row.ring, row.ulysses, row.world));
  if (row.heads % row.kv_heads != 0)
    line.fail("kv_heads", "does not divide heads; every KV head serves the same number of query heads");
  if (line.text("iters_per_s") != "OOM") row.seconds = 1 / line.rate_per_s("iters_per_s");
  return row;
}

}  // namespace

std::vector<ScoreRow> parse_score_csv(const std::string& text, const std::string& file) {
  std::vector<ScoreRow> rows;
  std::vector<std::string> names;
  std::set<std::string> seen;
  for_each_line(text, [&](long number, std::string_view raw) {
    const std::string content = trim(raw);
    if (content.empty() || content.front() == '#') return;
    if (names.empty()) {
      names = read_header(file, number, content);
      return;
    }
    const Line line(file, number, names, split(content, ','));
    rows.push_back(read_row(line, number));
    std::string key;
    for (const char* name : columns)
      if (std::string_view(name) != "iters_per_s") key += line.text(name) + ',';
    for (const char* name : {"backend", "transport", "library"})
      key += (line.has(name) ? line.text(name) : "") + ',';
    if (!seen.insert(key).second)
      line.fail("iters_per_s", "the same call is given twice; keep one row of it");
  });
  if (names.empty()) throw InvalidInput({file, 0, ""}, "no header line; the first line names the columns");
  if (rows.empty()) throw InvalidInput({file, 0, ""}, "no rows below the header; nothing to score");
  return rows;
}

Where location_of(const ScoreRow& row, const std::string& file, const std::string& column) {
  if (row.keys.empty()) return {file, row.line, column};
  const auto known = row.keys.find(column);
  return {file, 0, known == row.keys.end() ? row.keys.at("") : known->second};
}

}  // namespace usp
