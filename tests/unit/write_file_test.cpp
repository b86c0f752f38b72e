// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/file_lock.hpp"
#include "usp/base/text.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace usp {
namespace {

namespace fs = std::filesystem;

class WriteFile : public testing::Test {
 protected:
  WriteFile() { fs::create_directories(folder_); }
  ~WriteFile() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string path(const char* name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_ =
      fs::path(testing::TempDir()) /
      (std::string("write_file_") + testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
       std::to_string(::getpid()));
};

TEST_F(WriteFile, ReplacesTheWholeContentAndKeepsTheMode) {
  write_file(path("a"), "longer than what follows");
  fs::permissions(path("a"), fs::perms::owner_read | fs::perms::owner_write);
  write_file(path("a"), "short");
  EXPECT_EQ(read_file(path("a")), "short");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(files(), 1U);
}

TEST_F(WriteFile, ALockKeepsOthersOutAndIsGoneWithItsHolder) {
  {
    const FileLock first(path("lock"), "someone is at work");
    try {
      const FileLock second(path("lock"), "someone is at work");
      ADD_FAILURE() << "two hold it";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("someone is at work"), std::string::npos);
    }
    EXPECT_EQ(files(), 1U);
  }
  EXPECT_EQ(files(), 0U);
  write_file(path("lock"), "left by one that was killed");
  EXPECT_NO_THROW(FileLock(path("lock"), ""));
  EXPECT_THROW(FileLock(path("no/folder"), ""), EnvironmentError);
}

TEST_F(WriteFile, ALinkKeepsItsTarget) {
  write_file(path("target"), "old");
  fs::create_symlink("target", path("link"));
  write_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("target")), "new");
}

TEST_F(WriteFile, AnOpenPipeIsWrittenThroughAsAShellPassesIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string name = "/dev/fd/" + std::to_string(ends[1]);
  check_writable(name);
  EXPECT_THROW(check_writable("/dev/fd/" + std::to_string(ends[0])), EnvironmentError);
  write_file(name, "through");
  close(ends[1]);
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "through");
  close(ends[0]);
}

TEST_F(WriteFile, ANamedPipeIsRefusedInsteadOfWaitedFor) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_file(path("pipe"), "x"), EnvironmentError);
  EXPECT_THROW(check_writable(path("pipe")), EnvironmentError);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_EQ(files(), 1U);
}

TEST_F(WriteFile, AFailureLeavesNothingBehind) {
  fs::create_directories(path("folder"));
  EXPECT_THROW(write_file(path("folder"), "x"), EnvironmentError);
  EXPECT_THROW(write_file(path("no/such/folder"), "x"), EnvironmentError);
  EXPECT_EQ(files(), 1U);
}

/// Whenever it comes: in the middle of the file, of whose other part nothing is left lying, or after it.
TEST_F(WriteFile, ASignalLeavesAWholeFile) {
  const std::string content(std::size_t{32} << 20, 'x');
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write_file(path("a"), content);
    ::pause();
  }
  while (fs::is_empty(folder_)) std::this_thread::yield();
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(fs::file_size(path("a")), content.size());
}

TEST_F(WriteFile, WhatCannotBeWrittenIsKnownBefore) {
  fs::create_directories(path("folder"));
  write_file(path("old"), "kept");
  EXPECT_NO_THROW(check_writable(path("new")));
  EXPECT_NO_THROW(check_writable(path("old")));
  EXPECT_NO_THROW(check_writable("-"));
  EXPECT_NO_THROW(check_writable("/dev/null"));
  EXPECT_THROW(check_writable(path("folder")), EnvironmentError);
  EXPECT_THROW(check_writable(path("no/such/folder")), EnvironmentError);
  EXPECT_THROW(check_writable("/proc/none"), EnvironmentError);
  EXPECT_EQ(read_file(path("old")), "kept");
  EXPECT_EQ(files(), 2U);
}

TEST(Escaped, WhatControlsATerminalIsShownInstead) {
  EXPECT_EQ(escaped("plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\x89"),
            "plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\x89");
  EXPECT_EQ(escaped("\x1b[2J\r\t\x7f"), "\\x1b[2J\\x0d\\x09\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J");
  EXPECT_EQ(escaped("\x9b \xff \xe2\x82"), "\\x9b \\xff \\xe2\\x82");
  EXPECT_EQ(escaped("a\nb"), "a\\x0ab");
  EXPECT_EQ(escaped("a\nb\x1b", true), "a\nb\\x1b");
  EXPECT_EQ(std::string(InvalidInput({"f\n", 0, "t\x1b"}, "is bad").what()), "f\\x0a: at 't\\x1b': is bad");
}

}  // namespace
}  // namespace usp
