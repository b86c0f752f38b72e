// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include "usp/base/error.hpp"
#include "usp/device/device.hpp"

#include <fmt/format.h>

#include <dlfcn.h>
#include <utility>

namespace usp::measure {
namespace {

template <class Call>
[[nodiscard]] bool find(void* library, const char* name, Call& call) {
  call = library == nullptr ? nullptr : reinterpret_cast<Call>(dlsym(library, name));
  return call != nullptr;
}

/// The first that can be loaded, with its name; stays loaded.
std::pair<void*, const char*> load_first(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return {library, name};
  return {nullptr, ""};
}

/// By the C interface of BLAS.
class HostProducts final : public ProductLibrary {
 public:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
  HostProducts(Sgemm sgemm, std::string name) : sgemm_(sgemm), name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  void multiply(const ProductShape& s, const std::byte* a, const std::byte* b, std::byte* c) override {
    constexpr int row_major = 101, as_is = 111;
    const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    sgemm_(row_major, as_is, as_is, m, n, k, 1, reinterpret_cast<const float*>(a), k,
           reinterpret_cast<const float*>(b), n, 0, reinterpret_cast<float*>(c), n);
  }

 private:
  Sgemm sgemm_;
  std::string name_;
};

std::unique_ptr<ProductLibrary> open_host_products() {
  const auto [library, file] = load_first({"libmkl_rt.so.2", "libopenblas.so.0", "libblas.so.3"});
  HostProducts::Sgemm sgemm = nullptr;
  if (!find(library, "cblas_sgemm", sgemm)) return nullptr;
  std::string name = file;
  const char* (*describe)() = nullptr;
  if (find(library, "openblas_get_config", describe)) name = describe();
  // A rank computes on one thread.
  void (*set_threads)(int) = nullptr;
  for (const char* const call : {"openblas_set_num_threads", "MKL_Set_Num_Threads"})
    if (find(library, call, set_threads)) set_threads(1);
  return std::make_unique<HostProducts>(sgemm, name);
}

// What is used of cuBLAS; its types have kept their values since CUDA 11.
using CublasHandle = struct cublasContext*;
constexpr int cublas_success = 0, cublas_as_is = 0, cublas_fp32_sums = 68, cublas_default = -1;

int cublas_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 14;
    case DType::fp16:
      return 2;
    default:
      return 0;
  }
}

struct CublasApi {
  int (*create)(CublasHandle*) = nullptr;
  int (*destroy)(CublasHandle) = nullptr;
  int (*set_stream)(CublasHandle, CUstream_st*) = nullptr;
  int (*version)(CublasHandle, int*) = nullptr;
  int (*gemm)(CublasHandle, int, int, int m, int n, int k, const void* alpha, const void* a, int a_type,
              int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
              int sums, int algorithm) = nullptr;

  [[nodiscard]] bool load() {
    void* const library = load_first({"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}).first;
    return find(library, "cublasCreate_v2", create) && find(library, "cublasDestroy_v2", destroy) &&
           find(library, "cublasSetStream_v2", set_stream) && find(library, "cublasGetVersion_v2", version) &&
           find(library, "cublasGemmEx", gemm);
  }
};

class DeviceProducts final : public ProductLibrary {
 public:
  DeviceProducts(kernels::Memory& memory, const CublasApi& api, DType dtype)
      : memory_(memory), api_(api), type_(cublas_type(dtype)) {
    const device::DeviceScope scope(memory_.device());
    expect(api_.create(&handle_), "cublasCreate");
  }
  ~DeviceProducts() override { static_cast<void>(api_.destroy(handle_)); }
  DeviceProducts(const DeviceProducts&) = delete;
  DeviceProducts& operator=(const DeviceProducts&) = delete;
  [[nodiscard]] std::string name() const override {
    int code = 0;
    static_cast<void>(api_.version(handle_, &code));
    return fmt::format("cublas {}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }
  /// Column by column, as cuBLAS counts, c' = b' a'.
  void multiply(const ProductShape& s, const std::byte* a, const std::byte* b, std::byte* c) override {
    const device::DeviceScope scope(memory_.device());
    const float one = 1, zero = 0;
    const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    expect(api_.set_stream(handle_, memory_.stream()), "cublasSetStream");
    expect(api_.gemm(handle_, cublas_as_is, cublas_as_is, n, m, k, &one, b, type_, n, a, type_, k, &zero, c,
                     type_, n, cublas_fp32_sums, cublas_default),
           "cublasGemmEx");
  }

 private:
  static void expect(int status, const char* call) {
    if (status != cublas_success)
      throw EnvironmentError(fmt::format("{} failed with status {} of cuBLAS", call, status));
  }

  kernels::Memory& memory_;
  CublasApi api_;
  int type_;
  CublasHandle handle_ = nullptr;
};

}  // namespace

std::unique_ptr<ProductLibrary> open_products(kernels::Memory& memory, DType dtype) {
  if (memory.stream() == nullptr) return dtype == DType::fp32 ? open_host_products() : nullptr;
  CublasApi api;
  if (dtype == DType::fp64 || !api.load()) return nullptr;
  return std::make_unique<DeviceProducts>(memory, api, dtype);
}

}  // namespace usp::measure
