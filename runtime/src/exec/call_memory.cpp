// SPDX-License-Identifier: Apache-2.0
#include "call_memory.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace usp {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& problem) {
  throw UsageError(name + problem);
}

void check_alignment(std::uintptr_t begin, i64 element_bytes, const char* name) {
  if (begin % static_cast<std::uintptr_t>(element_bytes) != 0)
    refuse(name, fmt::format(" begins at an address that is no multiple of its elements' {} bytes; give "
                             "memory aligned for its type",
                             element_bytes));
}

std::string strides_of(const kernels::ConstView& v) {
  return fmt::format("strides of {} (batch), {} (row) and {} (head) elements", v.batch_stride, v.row_stride,
                     v.head_stride);
}

}  // namespace

void CallMemory::reads(const kernels::ConstView& view, const char* name) {
  add(view, name, false);
}

void CallMemory::writes(const kernels::ConstView& view, const char* name) {
  add(view, name, true);
}

void CallMemory::reads(const void* data, i64 count, i64 element_bytes, const char* name) {
  add(data, count, element_bytes, name, false);
}

void CallMemory::writes(const void* data, i64 count, i64 element_bytes, const char* name) {
  add(data, count, element_bytes, name, true);
}

void CallMemory::push(const Block& block) {
  expects(count_ < blocks_.size(), "a call has more tensors than CallMemory has room for");
  blocks_[count_++] = block;
}

void CallMemory::add(const void* data, i64 count, i64 element_bytes, const char* name, bool written) {
  if (data == nullptr || count == 0) return;
  Block block{name, written, reinterpret_cast<std::uintptr_t>(data), 0, 0, {}};
  check_alignment(block.begin, element_bytes, name);
  if (__builtin_mul_overflow(count, element_bytes, &block.row_bytes) ||
      __builtin_add_overflow(block.begin, static_cast<std::uintptr_t>(block.row_bytes), &block.end))
    refuse(name, " ends beyond the address space; give the counts of the memory that it has");
  push(block);
}

void CallMemory::add(const kernels::ConstView& view, const char* name, bool written) {
  if (view.elements() == 0) return;
  const i64 element = bytes_of(view.type);
  Block block{name, written, reinterpret_cast<std::uintptr_t>(view.data), 0, view.width * element, {}};
  check_alignment(block.begin, element, name);
  const std::pair<i64, i64> given[] = {
      {view.batch, view.batch_stride}, {view.rows, view.row_stride}, {view.heads.size(), view.head_stride}};
  i64 span = block.row_bytes;
  bool fits = true;
  std::size_t axis = 0;
  for (const auto& [count, stride] : given) {
    if (count == 1) continue;  // a stride that leads nowhere
    if (stride < 0)
      refuse(name,
             fmt::format(
                 " has {}: a negative one leads out of the memory before its data; give strides of 0 or more",
                 strides_of(view)));
    Axis& to = block.axes[axis++];
    to.count = count;
    i64 reach = 0;
    fits = fits && !__builtin_mul_overflow(stride, element, &to.stride_bytes) &&
           !__builtin_mul_overflow(to.stride_bytes, count - 1, &reach) &&
           !__builtin_add_overflow(span, reach, &span);
  }
  fits = fits && !__builtin_add_overflow(block.begin, static_cast<std::uintptr_t>(span), &block.end);
  if (!fits)
    refuse(name,
           fmt::format(" has {}, which lead beyond the address space; give strides of the memory that it has",
                       strides_of(view)));
  std::sort(block.axes.begin(), block.axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride_bytes < b.stride_bytes; });
  if (written) check_own_places(block, view);
  push(block);
}

void CallMemory::check_own_places(const Block& block, const kernels::ConstView& view) {
  i64 inner = block.row_bytes;
  for (const Axis& axis : block.axes) {
    if (axis.count == 1) continue;
    if (axis.stride_bytes < inner)
      refuse(block.name,
             fmt::format(" has {} for rows of {}, so that some of its elements share memory and overwrite "
                         "each other; each axis of a result steps over all of the axes inside it",
                         strides_of(view), view.width));
    inner += (axis.count - 1) * axis.stride_bytes;
  }
}

/// Elements lie at a multiple of `period`, common to both, plus an offset within the axes inside it. Two
/// ranges of offsets that are apart on the circle of that length never meet.
bool CallMemory::apart_modulo(const Block& a, const Block& b, i64 outer_from) {
  i64 period = 0;
  const auto inner_of = [&](const Block& block) {
    i64 inner = block.row_bytes;
    for (const Axis& axis : block.axes) {
      if (axis.count == 1) continue;
      if (axis.stride_bytes >= outer_from)
        period = std::gcd(period, axis.stride_bytes);
      else
        inner += (axis.count - 1) * axis.stride_bytes;
    }
    return inner;
  };
  const i64 inner_a = inner_of(a), inner_b = inner_of(b);
  if (period == 0) return false;
  const auto circle = static_cast<std::uintptr_t>(period);
  const auto offset = static_cast<i64>((b.begin % circle + circle - a.begin % circle) % circle);
  return inner_a <= offset && inner_b <= period - offset;
}

bool CallMemory::apart(const Block& a, const Block& b) {
  if (a.end <= b.begin || b.end <= a.begin) return true;
  for (const Block* block : {&a, &b})
    for (const Axis& axis : block->axes)
      if (axis.stride_bytes > 0 && apart_modulo(a, b, axis.stride_bytes)) return true;
  return false;
}

void CallMemory::check_apart() const {
  for (std::size_t i = 0; i < count_; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const Block &a = blocks_[i], &b = blocks_[j];
      if ((!a.written && !b.written) || apart(a, b)) continue;
      const Block &result = a.written ? a : b, &other = a.written ? b : a;
      refuse(result.name, fmt::format(" overlaps {} in memory, which the call {}; give {} memory of its own",
                                      other.name, other.written ? "writes too" : "still reads", result.name));
    }
}

}  // namespace usp
