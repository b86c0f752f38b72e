// SPDX-License-Identifier: Apache-2.0
#include "usp/base/file.hpp"

#include "descriptor.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace usp {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw InvalidInput({path, 0, ""}, problem);
}

/// What a file that was opened by its name must not be.
void check_kind(const std::string& path, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) refuse(path, "is a folder; name a file");
  if (S_ISFIFO(status.st_mode))
    refuse(path, "is a named pipe, which may wait for ever for a writer; give '-' and let the shell open it");
  if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
    refuse(path, "is a device, which has no end; name a file");
  if (!S_ISREG(status.st_mode)) refuse(path, "is no file to read; name a file");
}

int opened_to_read(const std::string& path) {
  const std::optional<int> given = path == "-" ? STDIN_FILENO : descriptor_named(path);
  const int descriptor = given ? ::fcntl(*given, F_DUPFD_CLOEXEC, 0)
                               : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0)
    refuse(path, fmt::format("cannot be opened; check the path ({})", std::strerror(errno)));
  struct stat status {};
  try {
    if (::fstat(descriptor, &status) != 0) refuse(path, std::strerror(errno));
    if (!given || S_ISDIR(status.st_mode)) check_kind(path, status);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  return descriptor;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)), descriptor_(opened_to_read(path_)) {}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::optional<std::int64_t> InputFile::bytes_left() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
    return std::nullopt;  // files of /proc state no size
  const off_t at = ::lseek(descriptor_, 0, SEEK_CUR);
  return std::max<std::int64_t>(0, std::int64_t{status.st_size} - std::max<off_t>(at, 0));
}

std::size_t InputFile::read(void* to, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::read(descriptor_, static_cast<char*>(to) + done, count - done);
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (errno == EAGAIN) {
      pollfd wanted{descriptor_, POLLIN, 0};
      ::poll(&wanted, 1, -1);
    } else if (errno != EINTR) {
      refuse(path_, std::string("cannot be read: ") + std::strerror(errno));
    }
  }
  return done;
}

std::string read_file(const std::string& path) {
  constexpr std::size_t step = std::size_t{1} << 20;
  constexpr auto most = static_cast<std::size_t>(max_text_bytes);
  InputFile file(path);
  const std::int64_t size = file.bytes_left().value_or(0);
  std::string text;
  std::size_t got = size > max_text_bytes ? most + 1 : 0;  // nothing needs to be read to refuse it
  text.reserve(std::min(static_cast<std::size_t>(size), most) + 1);
  for (bool more = got == 0; more && text.size() <= most;) {
    const std::size_t begin = text.size();
    text.resize(begin + step);
    got = file.read(text.data() + begin, step);
    text.resize(begin + got);
    more = got == step;
  }
  if (std::max(got, text.size()) > most) refuse(path, "larger than 64 MiB; this is not such a file");
  if (text.find('\0') != std::string::npos)
    refuse(path, "holds a NUL byte: a binary file, or text in UTF-16; save it as UTF-8");
  if (text.compare(0, 3, "\xef\xbb\xbf") == 0) text.erase(0, 3);
  return text;
}

std::optional<FileIdentity> file_identity(const std::string& path, int standard) {
  struct stat status {};
  const std::optional<int> given = path == "-" ? standard : descriptor_named(path);
  const int result = given ? ::fstat(*given, &status) : ::stat(path.c_str(), &status);
  if (result == 0) {
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return FileIdentity{status.st_dev, status.st_ino, ""};
  }
  if (given || path.empty()) return std::nullopt;
  std::error_code error;
  const std::filesystem::path full =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (error) return std::nullopt;
  return FileIdentity{0, 0, full.string()};
}

}  // namespace usp
