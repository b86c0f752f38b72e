// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/host_tensor.hpp"

#include "usp/kernels/regions.hpp"
#include "usp/runtime/shard.hpp"

namespace usp {
namespace {

template <class V>
kernels::ViewRegion whole(const V& view) {
  return {{0, view.rows}, view.heads};
}

}  // namespace

HostTensor::HostTensor(DType type, i64 batch, i64 rows, Range heads, i64 width)
    : bytes_(static_cast<std::size_t>(batch * rows * heads.size() * width * bytes_of(type))),
      type_(type),
      batch_(batch),
      rows_(rows),
      heads_(heads),
      width_(width) {}

HostTensor HostTensor::as(DType type) const {
  HostTensor other(type, batch_, rows_, heads_, width_);
  kernels::copy_region(view(), whole(view()), other.view(), whole(view()), WriteMode::overwrite);
  return other;
}

HostTensor HostTensor::copy_of(const kernels::ConstView& view) {
  HostTensor copy(view.type, view.batch, view.rows, view.heads, view.width);
  kernels::copy_region(view, whole(view), copy.view(), whole(view), WriteMode::overwrite);
  return copy;
}

HostTensor HostTensor::rows_of(const std::vector<i64>& tokens) const {
  HostTensor part(type_, batch_, static_cast<i64>(tokens.size()), heads_, width_);
  gather_rows(view(), tokens, part.view());
  return part;
}

}  // namespace usp
