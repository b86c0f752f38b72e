// SPDX-License-Identifier: Apache-2.0
#include "usp/base/text.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <unistd.h>

namespace usp {
namespace {

constexpr std::size_t max_file_bytes = std::size_t{64} << 20;

std::string read_stream(std::istream& in, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_file_bytes)
      throw InvalidInput({path, 0, ""}, "larger than 64 MiB; this is not such a file");
  }
  return text;
}

/// Bytes of the UTF-8 character that begins `text` and controls nothing; 0: there is none.
std::size_t plain_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead < 0x20 || lead == 0x7f ? 0 : 1;
  const std::size_t length = lead >= 0xf0 && lead <= 0xf4   ? 4
                             : lead >= 0xe0 && lead <= 0xef ? 3
                             : lead >= 0xc2 && lead <= 0xdf ? 2
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return lead == 0xc2 && byte(1) < 0xa0 ? 0 : length;  // U+0080 to U+009F control terminals too
}

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

void write_through(const std::string& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content << std::flush;
  if (!out) throw EnvironmentError(path + " cannot be written; check the folder and the space left");
}

[[noreturn]] void refuse_writing(const std::string& path, const std::string& reason) {
  throw EnvironmentError(path + " cannot be written; check the folder and the space left (" + reason + ")");
}

/// The file that a name stands for, links followed.
std::string target_of(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_symlink(path, error) ? std::filesystem::weakly_canonical(path, error).string()
                                                  : path;
}

std::string name_beside(const std::string& target) {
  return target + ".partial-" + std::to_string(::getpid());
}

/// Whole or not at all, where a file can be put in another's place: links keep their target, files their
/// mode, and devices and pipes are written through.
void write_beside(const std::string& path, std::string_view content) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (fs::is_directory(before)) throw EnvironmentError(path + " is a folder; name a file");
  if (fs::exists(before) && !fs::is_regular_file(before)) return write_through(path, content);
  const std::string target = target_of(path), temporary = name_beside(target);
  const HeldSignals held;
  try {
    write_through(temporary, content);
    if (fs::exists(before)) fs::permissions(temporary, before.permissions());
    fs::rename(temporary, target);
  } catch (const std::exception& fault) {
    fs::remove(temporary, error);
    refuse_writing(path, fault.what());
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  if (path == "-") return read_stream(std::cin, "-");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw InvalidInput({path, 0, ""}, "is a folder; name a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InvalidInput({path, 0, ""}, "cannot be opened; check the path");
  return read_stream(in, path);
}

void write_file(const std::string& path, std::string_view content) {
  if (path == "-") {
    std::cout << content << std::flush;
    if (!std::cout) throw EnvironmentError("stdout cannot be written; is the disk full or the pipe closed?");
    return;
  }
  write_beside(path, content);
}

void check_writable(const std::string& path) {
  if (path == "-") return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (fs::is_directory(before)) throw EnvironmentError(path + " is a folder; name a file");
  if (fs::exists(before) && !fs::is_regular_file(before)) {
    if (::access(path.c_str(), W_OK) != 0) refuse_writing(path, std::strerror(errno));
    return;
  }
  const std::string temporary = name_beside(target_of(path));
  const HeldSignals held;
  errno = 0;
  const bool made = std::ofstream(temporary, std::ios::binary | std::ios::trunc).is_open();
  if (!made) refuse_writing(path, std::strerror(errno));
  fs::remove(temporary, error);
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (auto& line : lines)
    if (!line.empty() && line.back() == '\r') line.pop_back();
  return lines;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::vector<std::string> split_blanks(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

std::string trim(std::string_view text) {
  const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string escaped(std::string_view text, bool lines) {
  std::string result;
  while (!text.empty()) {
    const std::size_t plain = lines && text.front() == '\n' ? 1 : plain_character(text);
    if (plain > 0) {
      result += text.substr(0, plain);
    } else {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(text.front()));
      result += code;
    }
    text.remove_prefix(std::max<std::size_t>(1, plain));
  }
  return result;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : std::string(separator)) + parts[i];
  return text;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = 1 + name.size() / 3;
  for (const auto& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t change = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() <= best_distance && row.back() < name.size()) {
      if (best.empty() || row.back() < best_distance) best = candidate;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace usp
