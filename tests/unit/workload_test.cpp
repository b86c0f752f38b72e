// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/workload.hpp"

#include "usp/base/error.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace usp {
namespace {

using Lengths = std::vector<std::int64_t>;

TEST(Workload, WordsOfTheCommandLine) {
  EXPECT_EQ(parse_word<Recompute>("offload", "--recompute"), Recompute::offload);
  EXPECT_EQ(parse_word<Precision>("fp32", "--dtype"), Precision::fp32);
  EXPECT_EQ(parse_word<Optimizer>("sgd", "--optimizer"), Optimizer::sgd);
  EXPECT_EQ(parse_zero_stage("2", "--zero"), 2);
  EXPECT_EQ(parse_document_lengths("4096, 8k,1000", "--documents"), (Lengths{4096, 8192, 1000}));
  EXPECT_EQ(word_of(Recompute::selective), "selective");
  for (const char* word : {"", "Full", "fulll", "none "})
    EXPECT_THROW(static_cast<void>(parse_word<Recompute>(word, "--recompute")), UsageError);
  for (const char* word : {"4", "-1", "2.0", ""})
    EXPECT_THROW(static_cast<void>(parse_zero_stage(word, "--zero")), UsageError);
  EXPECT_THROW(static_cast<void>(parse_document_lengths("4096,,1", "--documents")), UsageError);
}

TEST(Workload, FilesOfLengths) {
  EXPECT_EQ(read_document_lengths("# lengths\n12\r\n\n7\n", "l.txt"), (Lengths{12, 7}));
  for (const char* text : {"", "\n", "12\nabc\n", "0\n", "-3\n", "1.5\n", "99999999999999999999\n", "1 2\n"})
    EXPECT_THROW(static_cast<void>(read_document_lengths(text, "l.txt")), InvalidInput) << text;
  try {
    static_cast<void>(read_document_lengths("1\n2\nx\n", "l.txt"));
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where().line, 3);
    EXPECT_EQ(error.where().token, "x");
  }
}

TEST(Workload, DrawnDocumentsFillTheTokens) {
  const Lengths lengths = {100, 333, 7, 1024};
  const Lengths drawn = draw_documents(lengths, 10'000, 42);
  EXPECT_EQ(std::accumulate(drawn.begin(), drawn.end(), std::int64_t{0}), 10'000);
  EXPECT_EQ(drawn, draw_documents(lengths, 10'000, 42));
  EXPECT_NE(drawn, draw_documents(lengths, 10'000, 43));
  for (std::size_t i = 0; i + 1 < drawn.size(); ++i)
    EXPECT_NE(std::find(lengths.begin(), lengths.end(), drawn[i]), lengths.end());
  EXPECT_EQ(draw_documents({50}, 120, 1), (Lengths{50, 50, 20}));
}

TEST(Workload, DrawnDocumentsAreBounded) {
  EXPECT_EQ(draw_documents({1}, std::int64_t{1} << 20, 1).size(), static_cast<std::size_t>(max_documents));
  EXPECT_THROW(static_cast<void>(draw_documents({1}, (std::int64_t{1} << 20) + 1, 1)), InvalidInput);
  EXPECT_THROW(static_cast<void>(draw_documents({1, 2}, std::int64_t{1} << 40, 1)), InvalidInput);
}

TEST(Workload, ContradictionsAreUsageErrors) {
  Workload w;
  w.seq = 100;
  w.batch = 4;
  EXPECT_NO_THROW(check_workload(w));
  for (const Lengths& good : {Lengths{60, 40}, Lengths{100, 0}}) {
    w.documents = good;
    EXPECT_NO_THROW(check_workload(w));
  }
  for (const Lengths& bad : {Lengths{60}, Lengths{60, 41}, Lengths{-1, 101}}) {
    w.documents = bad;
    EXPECT_THROW(check_workload(w), InvalidInput);
  }
  w.documents.clear();
  w.microbatches = 3;
  EXPECT_THROW(check_workload(w), UsageError);
}

}  // namespace
}  // namespace usp
