// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/file.hpp"
#include "usp/schedule/types.hpp"

#include <cstddef>
#include <string>
#include <vector>

/// NumPy's .npy files, versions 1.0 and 2.0, C order, little endian.
namespace usp {

/// Element types that are read and written. NumPy has no bf16: its bits travel as u2.
enum class NpyType : std::uint8_t { f2, f4, f8, u2 };

/// Header of a .npy file.
struct NpyHeader {
  NpyType type = NpyType::f4;
  std::vector<i64> shape;

  [[nodiscard]] i64 data_bytes() const;
};

struct NpyArray : NpyHeader {
  std::vector<std::byte> bytes;
};

[[nodiscard]] i64 bytes_of(NpyType type);
/// "<f4"
[[nodiscard]] const char* npy_type_name(NpyType type);

/// A file whose header has been read, but not its data: a small file can
/// claim to hold, or be, terabytes. Paths are those of InputFile.
class NpyFile {
 public:
  /// Throws InvalidInput naming file and reason: no .npy file, another version, another element type, Fortran
  /// or big-endian order, a header that says something else than these three keys or takes more than 64 KiB,
  /// a file that is shorter or longer than its header says.
  explicit NpyFile(const std::string& path);

  [[nodiscard]] const NpyHeader& header() const { return header_; }
  /// Reads the data, once. Throws InvalidInput where a pipe ends early or goes on.
  [[nodiscard]] NpyArray read();

 private:
  InputFile file_;
  NpyHeader header_;
};

/// The same from memory.
[[nodiscard]] NpyArray parse_npy(const std::string& content, const std::string& file);

/// Version 1.0. Throws EnvironmentError when the file cannot be written.
void write_npy(const std::string& path, const NpyArray& array);
[[nodiscard]] std::string npy_bytes(const NpyArray& array);

}  // namespace usp
