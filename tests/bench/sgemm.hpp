// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace usp::bench {

/// One single-threaded implementation of c = a * b for column-major n x n matrices.
struct Sgemm {
  std::string name;
  void (*multiply)(int n, const float* a, const float* b, float* c);
};

/// Eigen, and OpenBLAS where the build found it.
[[nodiscard]] std::vector<Sgemm> sgemms();

}  // namespace usp::bench
