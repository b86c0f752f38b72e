// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <string>
#include <vector>

/// NumPy's .npy files, versions 1.0 and 2.0, C order, little endian.
namespace usp {

/// Element types that are read and written. NumPy has no bf16: its bits travel as u2.
enum class NpyType : std::uint8_t { f2, f4, f8, u2 };

struct NpyArray {
  NpyType type = NpyType::f4;
  std::vector<i64> shape;
  std::vector<std::byte> bytes;
};

[[nodiscard]] i64 bytes_of(NpyType type);
/// "<f4"
[[nodiscard]] const char* npy_type_name(NpyType type);

/// Throws InvalidInput naming file and reason: no .npy file, another version, another element type, Fortran
/// or big-endian order, a header that says something else than these three keys, a file that is shorter or
/// longer than its header says.
[[nodiscard]] NpyArray read_npy(const std::string& path);
[[nodiscard]] NpyArray parse_npy(const std::string& content, const std::string& file);

/// Version 1.0. Throws EnvironmentError when the file cannot be written.
void write_npy(const std::string& path, const NpyArray& array);
[[nodiscard]] std::string npy_bytes(const NpyArray& array);

}  // namespace usp
