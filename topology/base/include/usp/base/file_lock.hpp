// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace usp {

/// Keeps other processes from what a file belongs to: an advisory lock, which ends with its process too. The
/// file is made where there is none and removed with the lock.
class FileLock {
 public:
  /// Never waits. @param taken what to say where another one holds it
  /// Throws EnvironmentError: that, or that the file cannot be made.
  FileLock(std::string path, const std::string& taken);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace usp
