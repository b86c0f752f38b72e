// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/regions.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/numeric_types.hpp"

#include <cstring>
#include <utility>

namespace usp::kernels {
namespace {

/// How elements of a type enter and leave arithmetic.
template <class T>
[[nodiscard]] auto widen(T x) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, fp16>)
    return to_float(x);
  else
    return x;
}
template <class T, class Wide>
[[nodiscard]] T narrow(Wide x) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, fp16>)
    return to_fp16(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

/// Calls f with a value of the element type.
template <class F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::bf16:
      return f(bf16{});
    case DType::fp16:
      return f(fp16{});
    case DType::fp32:
      return f(float{});
    case DType::fp64:
      return f(double{});
  }
  throw InternalError("unknown element type");
}

template <class From, class To>
void convert_run(const From* from, To* to, i64 count, WriteMode mode) {
  if (mode == WriteMode::accumulate) {
    for (i64 i = 0; i < count; ++i) to[i] = narrow<To>(widen(to[i]) + widen(from[i]));
  } else if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(To));
  } else {
    for (i64 i = 0; i < count; ++i) to[i] = narrow<To>(widen(from[i]));
  }
}

using RunCopy = void (*)(const std::byte*, std::byte*, i64 count, WriteMode);

[[nodiscard]] RunCopy run_copy(DType from, DType to) {
  RunCopy chosen = nullptr;
  with_type(from, [&](auto a) {
    with_type(to, [&](auto b) {
      using A = decltype(a);
      using B = decltype(b);
      chosen = [](const std::byte* source, std::byte* target, i64 count, WriteMode mode) {
        convert_run(reinterpret_cast<const A*>(source), reinterpret_cast<B*>(target), count, mode);
      };
    });
  });
  return chosen;
}

/// Heads x width as one run where they lie side by side; no run where there is nothing, which has no address.
struct Runs {
  i64 count, elements;
};
template <class... Views>
[[nodiscard]] Runs runs_of(Range heads, i64 width, const Views&... views) {
  if (heads.empty() || width == 0) return {0, 0};
  const bool joined = ((views.head_stride == width) && ...);
  return joined ? Runs{1, heads.size() * width} : Runs{heads.size(), width};
}

template <class V>
void check_region(const V& view, const ViewRegion& region) {
  expects(region.rows.begin >= 0 && region.rows.end <= view.rows && region.heads.begin >= view.heads.begin &&
              region.heads.end <= view.heads.end,
          "a region reaches outside its tensor");
}

}  // namespace

void copy_region(ConstView from, ViewRegion source, View to, ViewRegion target, WriteMode mode) {
  check_region(from, source);
  check_region(to, target);
  expects(source.rows.size() == target.rows.size() && source.heads.size() == target.heads.size() &&
              from.width == to.width && from.batch == to.batch,
          "a region is copied to one of another shape");
  const RunCopy copy = run_copy(from.type, to.type);
  const Runs runs = runs_of(source.heads, from.width, from, to);
  for (i64 r = 0; r < source.rows.size(); ++r)
    for (i64 b = 0; b < from.batch; ++b)
      for (i64 h = 0; h < runs.count; ++h)
        copy(from.at(b, source.rows.begin + r, source.heads.begin + h),
             to.at(b, target.rows.begin + r, target.heads.begin + h), runs.elements, mode);
}

std::byte* pack_region(ConstView from, ViewRegion region, DType wire, std::byte* payload) {
  check_region(from, region);
  const RunCopy copy = run_copy(from.type, wire);
  const Runs runs = runs_of(region.heads, from.width, from);
  for (i64 r = region.rows.begin; r < region.rows.end; ++r)
    for (i64 b = 0; b < from.batch; ++b)
      for (i64 h = 0; h < runs.count; ++h) {
        copy(from.at(b, r, region.heads.begin + h), payload, runs.elements, WriteMode::overwrite);
        payload += runs.elements * bytes_of(wire);
      }
  return payload;
}

const std::byte* unpack_region(const std::byte* payload, DType wire, View to, ViewRegion region,
                               WriteMode mode) {
  check_region(to, region);
  const RunCopy copy = run_copy(wire, to.type);
  const Runs runs = runs_of(region.heads, to.width, to);
  for (i64 r = region.rows.begin; r < region.rows.end; ++r)
    for (i64 b = 0; b < to.batch; ++b)
      for (i64 h = 0; h < runs.count; ++h) {
        copy(payload, to.at(b, r, region.heads.begin + h), runs.elements, mode);
        payload += runs.elements * bytes_of(wire);
      }
  return payload;
}

void fill(View to, double value) {
  with_type(to.type, [&](auto element) {
    using T = decltype(element);
    const T x = narrow<T>(value);
    for (i64 b = 0; b < to.batch; ++b)
      for (i64 r = 0; r < to.rows; ++r)
        for (i64 h = to.heads.begin; h < to.heads.end; ++h) {
          T* run = reinterpret_cast<T*>(to.at(b, r, h));
          for (i64 i = 0; i < to.width; ++i) run[i] = x;
        }
  });
}

}  // namespace usp::kernels
