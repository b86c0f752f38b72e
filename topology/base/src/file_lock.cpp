// SPDX-License-Identifier: Apache-2.0
#include "usp/base/file_lock.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace usp {
namespace {

/// The holder before may have removed the file between open and lock.
bool is_named(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

FileLock::FileLock(std::string path, const std::string& taken) : path_(std::move(path)) {
  constexpr mode_t for_the_owner = S_IRUSR | S_IWUSR;
  for (;;) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, for_the_owner);
    if (descriptor_ < 0)
      throw EnvironmentError(
          fmt::format("{} cannot be made: {}", path_, std::generic_category().message(errno)));
    const bool held = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!held && is_named(descriptor_, path_)) return;  // also on a file system that has no locks
    ::close(descriptor_);
    if (held) throw EnvironmentError(fmt::format("{} (it holds {})", taken, path_));
  }
}

FileLock::~FileLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace usp
