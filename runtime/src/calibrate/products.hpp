// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"

#include "usp/kernels/memory.hpp"

#include <memory>
#include <string>

namespace usp::measure {

/// A library of matrix products, as frameworks call it.
class ProductLibrary {
 public:
  ProductLibrary() = default;
  ProductLibrary(const ProductLibrary&) = delete;
  ProductLibrary& operator=(const ProductLibrary&) = delete;
  virtual ~ProductLibrary() = default;
  [[nodiscard]] virtual std::string name() const = 0;  ///< with its version, "cublas 13.0.2"
  /// c = a b, (m x k) times (k x n), all of one type; on a GPU enqueued.
  virtual void multiply(const ProductShape& shape, const std::byte* a, const std::byte* b, std::byte* c) = 0;
};

/// cuBLAS in the order of the memory's stream, for bf16, fp16 and fp32; on the host MKL, OpenBLAS or another
/// BLAS on one thread, for fp32. Null where none can be loaded or the type is another.
[[nodiscard]] std::unique_ptr<ProductLibrary> open_products(kernels::Memory& memory, DType dtype);

}  // namespace usp::measure
