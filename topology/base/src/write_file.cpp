// SPDX-License-Identifier: Apache-2.0
#include "descriptor.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace usp {
namespace {

[[noreturn]] void refuse_writing(const std::string& path, const std::string& reason) {
  throw EnvironmentError(
      fmt::format("{} cannot be written; check the folder and the space left ({})", path, reason));
}

/// An open descriptor that is written to and closed.
class Output {
 public:
  Output(const std::string& path, int descriptor) : path_(path), descriptor_(descriptor) {
    if (descriptor_ < 0) refuse_writing(path_, std::strerror(errno));
  }
  ~Output() { ::close(descriptor_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view content) const {
    while (!content.empty()) {
      const ssize_t put = ::write(descriptor_, content.data(), content.size());
      if (put >= 0) {
        content.remove_prefix(static_cast<std::size_t>(put));
      } else if (errno == EAGAIN) {
        pollfd wanted{descriptor_, POLLOUT, 0};
        ::poll(&wanted, 1, -1);
      } else if (errno != EINTR) {
        refuse_writing(path_, std::strerror(errno));
      }
    }
  }

 private:
  const std::string& path_;
  int descriptor_;
};

/// Keeps what ends a process by hand away while a file is half in its place; it arrives afterwards.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&held, signal);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_{};
};

enum class Way { beside, through, descriptor };

/// How a name is written. Throws for what is no place to write to.
Way way_of(const std::string& path) {
  if (descriptor_named(path)) return Way::descriptor;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Way::beside;
  if (S_ISDIR(status.st_mode)) throw EnvironmentError(path + " is a folder; name a file");
  if (S_ISFIFO(status.st_mode))
    throw EnvironmentError(
        path +
        " is a named pipe, which may wait for ever for a reader; write to '-' and let the shell open it");
  if (S_ISREG(status.st_mode)) return Way::beside;
  if (S_ISCHR(status.st_mode)) return Way::through;
  throw EnvironmentError(path + " is a block device or a socket; name a file");
}

/// The file that a name refers to, links followed.
std::string target_of(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_symlink(path, error) ? std::filesystem::weakly_canonical(path, error).string()
                                                  : path;
}

std::string name_beside(const std::string& target) {
  return fmt::format("{}.partial-{}", target, ::getpid());
}

int opened_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
}

/// Whole or not at all: links keep their target, files their mode.
void write_beside(const std::string& path, std::string_view content) {
  namespace fs = std::filesystem;
  const std::string target = target_of(path), temporary = name_beside(target);
  std::error_code error;
  const fs::file_status before = fs::status(target, error);
  const HeldSignals held;
  try {
    Output(path, opened_new(temporary)).write(content);
    if (fs::exists(before)) fs::permissions(temporary, before.permissions());
    fs::rename(temporary, target);
  } catch (const fs::filesystem_error& fault) {
    fs::remove(temporary, error);
    refuse_writing(path, fault.code().message());
  } catch (...) {
    fs::remove(temporary, error);
    throw;
  }
}

}  // namespace

std::optional<int> descriptor_named(const std::string& path) {
  if (path == "/dev/stdin") return STDIN_FILENO;
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (path.compare(0, folder.size(), folder) != 0) continue;
    int number = -1;
    const char* end = path.data() + path.size();
    const auto [at, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc() && at == end && number >= 0) return number;
  }
  return std::nullopt;
}

void write_file(const std::string& path, std::string_view content) {
  if (path == "-") {
    std::cout << content << std::flush;
    if (!std::cout) throw EnvironmentError("stdout cannot be written; is the disk full or the pipe closed?");
    return;
  }
  const Way way = way_of(path);
  if (way == Way::beside) return write_beside(path, content);
  if (way == Way::through)
    return Output(path, ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)).write(content);
  std::cout << std::flush;  // keeps the order of both outputs
  Output(path, ::fcntl(*descriptor_named(path), F_DUPFD_CLOEXEC, 0)).write(content);
}

void check_writable(const std::string& path) {
  if (path == "-") return;
  const Way way = way_of(path);
  if (way == Way::descriptor) {
    const int flags = ::fcntl(*descriptor_named(path), F_GETFL);
    if (flags < 0) refuse_writing(path, std::strerror(errno));
    if ((flags & O_ACCMODE) == O_RDONLY) refuse_writing(path, "it is open for reading only");
    return;
  }
  if (way == Way::through) {
    if (::access(path.c_str(), W_OK) != 0) refuse_writing(path, std::strerror(errno));
    return;
  }
  const std::string temporary = name_beside(target_of(path));
  const HeldSignals held;
  { const Output made(path, opened_new(temporary)); }
  std::error_code error;
  std::filesystem::remove(temporary, error);
}

}  // namespace usp
