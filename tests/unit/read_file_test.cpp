// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace usp {
namespace {

namespace fs = std::filesystem;

class ReadFile : public testing::Test {
 protected:
  ReadFile() { fs::create_directories(folder_); }
  ~ReadFile() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string path(const char* name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string written(const std::string& content) const {
    write_file(path("f"), content);
    return path("f");
  }
  fs::path folder_ =
      fs::path(testing::TempDir()) /
      (std::string("read_file_") + testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
       std::to_string(::getpid()));
};

std::string problem_of(const std::string& path) {
  try {
    static_cast<void>(read_file(path));
  } catch (const InvalidInput& error) {
    return error.problem();
  }
  return "no error";
}

TEST_F(ReadFile, TextIsTakenWithoutItsByteOrderMark) {
  EXPECT_EQ(read_file(written("\xef\xbb\xbf{}\n")), "{}\n");
  EXPECT_EQ(read_file(written("\xef\xbb\xbf")), "");
  EXPECT_EQ(read_file(written("a\xef\xbb\xbf")), "a\xef\xbb\xbf");
  EXPECT_EQ(read_file(written("")), "");
}

TEST_F(ReadFile, TextWithANulByteIsRefused) {
  EXPECT_NE(problem_of(written(std::string("{}\0", 3))).find("NUL"), std::string::npos);
  EXPECT_NE(problem_of(written(std::string("\xff\xfe{\0}\0", 6))).find("UTF-16"), std::string::npos);
}

TEST_F(ReadFile, WhatMayNeverEndOrComeIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(problem_of(path("pipe")).find("named pipe"), std::string::npos);
  EXPECT_NE(problem_of("/dev/zero").find("device"), std::string::npos);
  EXPECT_NE(problem_of(folder_.string()).find("folder"), std::string::npos);
  EXPECT_NE(problem_of(path("none")).find("cannot be opened"), std::string::npos);
  EXPECT_FALSE(read_file("/proc/self/status").empty());
}

TEST_F(ReadFile, ASizeBeyondTheLimitIsRefused) {
  const std::string file = written("x");
  fs::resize_file(file, static_cast<std::uintmax_t>(max_text_bytes) + 1);  // sparse
  EXPECT_NE(problem_of(file).find("64 MiB"), std::string::npos);
  const int zero = open("/dev/zero", O_RDONLY);
  EXPECT_NE(problem_of("/dev/fd/" + std::to_string(zero)).find("64 MiB"), std::string::npos);
  close(zero);
}

TEST_F(ReadFile, PiecesEndWhereTheFileEnds) {
  InputFile file(written("abcdef"));
  char piece[4];
  EXPECT_EQ(file.bytes_left(), 6);
  EXPECT_EQ(file.read(piece, 4), 4U);
  EXPECT_EQ(file.bytes_left(), 2);
  EXPECT_EQ(file.read(piece, 4), 2U);
  EXPECT_EQ(file.read(piece, 4), 0U);
}

TEST_F(ReadFile, NamesOfOneFileAreKnown) {
  const std::string file = written("x");
  fs::create_symlink("f", path("soft"));
  fs::create_hard_link(file, path("hard"));
  const auto identity = file_identity(file, 0);
  ASSERT_TRUE(identity);
  EXPECT_EQ(file_identity(path("soft"), 0), identity);
  EXPECT_EQ(file_identity(path("hard"), 1), identity);
  EXPECT_EQ(file_identity(path("./f"), 0), identity);
  write_file(path("g"), "x");
  EXPECT_NE(file_identity(path("g"), 0), identity);
  EXPECT_EQ(file_identity(path("new"), 0), file_identity(path("./new"), 0));
  EXPECT_NE(file_identity(path("new"), 0), file_identity(path("newer"), 0));
  EXPECT_EQ(file_identity("no/such/folder", 1), file_identity("./no/such/folder", 1));
  EXPECT_EQ(file_identity("/dev/null", 0), std::nullopt);
  EXPECT_EQ(file_identity(folder_.string(), 0), std::nullopt);
  const int opened = open(file.c_str(), O_RDONLY);
  EXPECT_EQ(file_identity("-", opened), identity);
  close(opened);
}

}  // namespace
}  // namespace usp
