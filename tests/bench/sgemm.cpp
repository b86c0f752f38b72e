// SPDX-License-Identifier: Apache-2.0
#include "sgemm.hpp"

#include <Eigen/Core>
#if defined(USP_BENCH_OPENBLAS)
#include <cblas.h>
#endif

namespace usp::bench {
namespace {

void eigen(int n, const float* a, const float* b, float* c) {
  using Matrix = Eigen::Map<Eigen::MatrixXf>;
  using ConstMatrix = Eigen::Map<const Eigen::MatrixXf>;
  Matrix(c, n, n).noalias() = ConstMatrix(a, n, n) * ConstMatrix(b, n, n);
}

#if defined(USP_BENCH_OPENBLAS)
void openblas(int n, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
}
#endif

}  // namespace

std::vector<Sgemm> sgemms() {
  std::vector<Sgemm> all{{"eigen", eigen}};
#if defined(USP_BENCH_OPENBLAS)
  openblas_set_num_threads(1);
  all.push_back({std::string("openblas ") + openblas_get_corename(), openblas});
#endif
  return all;
}

}  // namespace usp::bench
