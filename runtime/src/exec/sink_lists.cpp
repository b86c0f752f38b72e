// SPDX-License-Identifier: Apache-2.0
#include "sink_lists.hpp"

namespace usp {
namespace {

[[nodiscard]] kernels::View view_of(std::byte* data, DType type, int heads) {
  return {data, type, 1, 1, {0, heads}, 1};
}

[[nodiscard]] kernels::ViewRegion whole(int heads) {
  return {{0, 1}, {0, heads}};
}

}  // namespace

/// Both lists, so that neither moves when the other comes.
kernels::View SinkLists::list(int number, int heads) {
  const i64 bytes = align_buffer(heads * bytes_of(DType::fp64));
  lists_->reserve(2 * bytes);
  return view_of(lists_->data() + number * bytes, DType::fp64, heads);
}

const double* SinkLists::read(List<const std::byte> sink, int heads) {
  if (sink.data == nullptr || sink.type == DType::fp64) return reinterpret_cast<const double*>(sink.data);
  const kernels::View copy = list(0, heads);
  const kernels::ConstView from(sink.data, sink.type, 1, 1, {0, heads}, 1);
  memory_.copy_region(from, whole(heads), copy, whole(heads), WriteMode::overwrite);
  return reinterpret_cast<const double*>(copy.data);
}

double* SinkLists::sum_for(List<std::byte> d_sink, int heads) {
  if (d_sink.data == nullptr || d_sink.type == DType::fp64) return reinterpret_cast<double*>(d_sink.data);
  sum_ = list(1, heads);
  target_ = view_of(d_sink.data, d_sink.type, heads);
  memory_.fill(sum_, 0);
  return reinterpret_cast<double*>(sum_.data);
}

void SinkLists::finish_sum() {
  if (sum_.data == nullptr) return;
  const int heads = static_cast<int>(sum_.heads.size());
  memory_.copy_region(sum_, whole(heads), target_, whole(heads), WriteMode::accumulate);
  sum_ = target_ = {};
}

}  // namespace usp
