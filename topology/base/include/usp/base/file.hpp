// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Files by the names that users give. "-" is stdin or stdout; /dev/stdin, /dev/stdout and /dev/fd/N (what a
/// shell's <(...) and >(...) pass) are the descriptors that the process was started with. A named pipe is
/// refused: it would wait for ever for its other end.
namespace usp {

/// The most that is read as one text.
constexpr std::int64_t max_text_bytes = std::int64_t{64} << 20;

/// Whole text of a file, without the byte order mark that it may begin with. The one way in which text is
/// read: what one verb takes, all take. Throws InvalidInput when it cannot be read, is larger than
/// max_text_bytes, or holds a NUL byte, as binary files and UTF-16 do.
[[nodiscard]] std::string read_file(const std::string& path);

/// A file that is read piece by piece.
class InputFile {
 public:
  /// Never waits for another process. Throws InvalidInput for what cannot be opened and for folders, named
  /// pipes, devices and sockets.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Bytes that are still to be read; empty for pipes and files of unknown size.
  [[nodiscard]] std::optional<std::int64_t> bytes_left() const;
  /// Reads `count` bytes, or fewer where the file ends. Throws InvalidInput.
  std::size_t read(void* to, std::size_t count);

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Writes through a temporary name in the same folder, so that a reader never sees half a file; "-" is
/// stdout. Character devices and open descriptors are written through; folders, named pipes, sockets and
/// block devices are refused. SIGINT, SIGTERM and SIGHUP arrive once the file is whole, so that nothing of it
/// is left lying. Throws EnvironmentError.
void write_file(const std::string& path, std::string_view content);

/// Throws the EnvironmentError that write_file would, before there is something to write: tries with an empty
/// file beside `path`, which is left as it is.
void check_writable(const std::string& path);

/// Whether two names lead to one file: links and ./x count, and a file that is not there yet.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::string name;  ///< the canonical path of a file that is not there
  auto operator<=>(const FileIdentity&) const = default;
};

/// Empty for what is no regular file: folders, devices, pipes. `standard` is the descriptor of "-": 0 (stdin)
/// or 1 (stdout).
[[nodiscard]] std::optional<FileIdentity> file_identity(const std::string& path, int standard);

}  // namespace usp
