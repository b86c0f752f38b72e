// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/workload.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <span>
#include <utility>

namespace usp {
namespace {

void require(bool holds, const std::string& text) {
  if (!holds) throw UsageError(text);
}

void within(const char* flag, std::int64_t value, std::int64_t most) {
  require(value >= 1 && value <= most, fmt::format("{}: {} is out of range; 1 to {}", flag, value, most));
}

}  // namespace

void check_document_count(std::int64_t count, const std::string& file) {
  if (count > max_documents)
    throw InvalidInput(
        {file, 0, ""},
        fmt::format("packs more than {} documents into a row; plan a shorter row, or longer documents",
                    max_documents));
}

int bytes_of(Precision dtype) {
  return dtype == Precision::fp32 ? 4 : 2;
}

void check_workload(const Workload& w) {
  within("--seq", w.seq, max_tokens);
  within("--batch", w.batch, max_batch);
  require(i128{w.seq} * w.batch <= max_step_tokens,
          fmt::format("--batch: {} of {} are more than the {} tokens of a replica that are counted",
                      counted(w.batch, "row"), counted(w.seq, "token"), max_step_tokens));
  within("--microbatches", w.microbatches, max_batch);
  within("--pipeline", w.pipeline, max_ranks);
  within("--expert", w.expert, max_ranks);
  require(w.microbatches >= 1 && w.batch % w.microbatches == 0,
          fmt::format("--microbatches: {} cannot be split into {}; choose a divisor", counted(w.batch, "row"),
                      counted(w.microbatches, "microbatch")));
  require(w.expert_load >= 1 && w.expert_load <= 1e6,
          "--expert-load: the busiest rank holds at least the mean; 1 or more");
  require(w.zero_stage >= 0 && w.zero_stage <= 3, "--zero: the stages are 0, 1, 2 and 3");
  if (!w.documents.empty()) check_documents(w.documents, w.seq);
}

std::int64_t longest_document(const std::vector<std::int64_t>& documents, std::int64_t tokens) {
  return documents.empty() ? tokens : *std::max_element(documents.begin(), documents.end());
}

bool masks_none(std::int64_t before, std::optional<std::int64_t> after, std::int64_t tokens) {
  const std::int64_t last = tokens - 1;
  return before >= last && after.value_or(last) >= last;
}

void check_documents(const std::vector<std::int64_t>& lengths, std::int64_t tokens) {
  check_document_count(static_cast<std::int64_t>(lengths.size()), "--documents");
  std::int64_t sum = 0;
  for (const auto length : lengths) {
    if (length < 0 || length > tokens - sum)
      throw InvalidInput({"--documents", 0, std::to_string(length)},
                         fmt::format("the lengths exceed the {} tokens of the sequence, or one of them is "
                                     "negative; make them sum to it",
                                     tokens));
    sum += length;
  }
  if (sum != tokens)
    throw InvalidInput(
        {"--documents", 0, ""},
        fmt::format("the lengths sum to {} of {} tokens; make them equal, with a document for the padding",
                    sum, tokens));
}

int parse_zero_stage(std::string_view text, std::string_view flag) {
  const auto stage = parse_integer(text, flag);
  if (stage < 0 || stage > 3)
    throw UsageError(fmt::format("{}: '{}' is not a ZeRO stage (0, 1, 2 or 3)", flag, text));
  return static_cast<int>(stage);
}

std::vector<std::int64_t> parse_document_lengths(std::string_view text, std::string_view flag) {
  std::vector<std::int64_t> lengths;
  for (const auto& part : split(text, ',')) {
    const std::string word = trim(part);
    lengths.push_back(word == "0" ? 0 : parse_tokens(word, flag, max_tokens));  // an empty document
  }
  return lengths;
}

std::vector<std::int64_t> read_document_lengths(const std::string& text, const std::string& file) {
  std::vector<std::int64_t> lengths;
  for_each_line(text, [&](long line, std::string_view raw) {
    const std::string word_text = trim(raw);
    if (word_text.empty() || word_text.front() == '#') return;
    std::int64_t length = 0;
    try {
      length = parse_integer(word_text, file);
    } catch (const UsageError&) {
      throw InvalidInput({file, line, word_text}, "a line holds one document length in tokens");
    }
    if (length < 1 || length > max_tokens)
      throw InvalidInput({file, line, word_text}, "a document has between 1 and 2^40 tokens");
    lengths.push_back(length);
  });
  if (lengths.empty()) throw InvalidInput({file, 0, ""}, "holds no document length");
  return lengths;
}

std::vector<std::int64_t> draw_documents(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                         std::uint64_t seed) {
  expects(!lengths.empty(), "documents are drawn from no lengths");
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> documents;
  for (std::int64_t left = tokens; left > 0;) {
    // The remainder, not a distribution: its result is the same in every standard library.
    const std::int64_t length = std::min(lengths[random() % lengths.size()], left);
    documents.push_back(length);
    check_document_count(static_cast<std::int64_t>(documents.size()), "--document-lengths");
    left -= length;
  }
  return documents;
}

}  // namespace usp
