// SPDX-License-Identifier: Apache-2.0
#include "fast_div.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/device/plane_copy.hpp"

#include <algorithm>
#include <cstdint>

namespace usp::device {
namespace {

constexpr int threads = 256, words_per_thread = 4;
constexpr i64 words_per_block = i64{threads} * words_per_thread;
constexpr std::size_t max_planes = 24;  // of one kernel, in its parameters
constexpr i64 max_bytes = i64{1} << 31;

struct Plane {
  const unsigned char* from;
  unsigned char* to;
  i64 from_pitch, to_pitch;
  kernels::cuda::FastDiv words_per_row;
  std::uint32_t words;
};
struct Planes {
  Plane of[max_planes];
};

/// A plane per blockIdx.y. All loads of a thread are under way before its first store.
template <class Word>
__global__ void __launch_bounds__(threads) copy_planes_kernel(const __grid_constant__ Planes planes) {
  const Plane& plane = planes.of[blockIdx.y];
  const std::uint32_t first = blockIdx.x * (threads * words_per_thread) + threadIdx.x;
  Word word[words_per_thread];
  unsigned char* to[words_per_thread];
#pragma unroll
  for (int u = 0; u < words_per_thread; ++u) {
    std::uint32_t row = first + u * threads;
    if (row >= plane.words) break;
    const i64 column = i64{plane.words_per_row.split(row)} * i64{sizeof(Word)};
    word[u] = *reinterpret_cast<const Word*>(plane.from + row * plane.from_pitch + column);
    to[u] = plane.to + row * plane.to_pitch + column;
  }
#pragma unroll
  for (int u = 0; u < words_per_thread; ++u)
    if (first + u * threads < plane.words) *reinterpret_cast<Word*>(to[u]) = word[u];
}

/// All places and pitches, as the bits that any of them has set.
std::uint64_t places(const Copy2d& c) {
  const std::uint64_t all = reinterpret_cast<std::uint64_t>(c.from) | reinterpret_cast<std::uint64_t>(c.to) |
                            static_cast<std::uint64_t>(c.width);
  return c.height == 1 ? all : all | static_cast<std::uint64_t>(c.from_pitch | c.to_pitch);
}

template <class Word>
void launch(const Copy2d* copies, std::size_t count, cudaStream_t stream) {
  Planes planes{};
  i64 most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Copy2d& c = copies[i];
    expects(c.bytes() < max_bytes, "a copy by threads has less than 2^31 bytes");
    const auto word = static_cast<i64>(sizeof(Word));
    planes.of[i].from = reinterpret_cast<const unsigned char*>(c.from);
    planes.of[i].to = reinterpret_cast<unsigned char*>(c.to);
    planes.of[i].from_pitch = c.from_pitch, planes.of[i].to_pitch = c.to_pitch;
    planes.of[i].words_per_row = kernels::cuda::FastDiv(static_cast<std::uint32_t>(c.width / word));
    planes.of[i].words = static_cast<std::uint32_t>(c.bytes() / word);
    most = std::max(most, c.bytes() / word);
  }
  const dim3 blocks(static_cast<unsigned>((most + words_per_block - 1) / words_per_block),
                    static_cast<unsigned>(count));
  copy_planes_kernel<Word><<<blocks, threads, 0, stream>>>(planes);
  check_launch("copy_planes_kernel");
}

void copy_by_threads(const Copy2d* copies, std::size_t count, cudaStream_t stream) {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < count; ++i) all |= places(copies[i]);
  const auto launch_words = all % 16 == 0  ? launch<uint4>
                            : all % 4 == 0 ? launch<std::uint32_t>
                            : all % 2 == 0 ? launch<std::uint16_t>
                                           : launch<std::uint8_t>;
  launch_words(copies, count, stream);
}

void copy_by_engine(const Copy2d& c, cudaStream_t stream) {
  const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
  check_cuda(c.height == 1 ? cudaMemcpyAsync(c.to, c.from, size(c.width), cudaMemcpyDefault, stream)
                           : cudaMemcpy2DAsync(c.to, size(c.to_pitch), c.from, size(c.from_pitch),
                                               size(c.width), size(c.height), cudaMemcpyDefault, stream),
             "a copy of rows");
}

}  // namespace

void enqueue_plane_copies(const Copy2d* copies, std::size_t count, CopyBy by, StreamHandle stream) {
  if (by == CopyBy::engine)
    for (std::size_t i = 0; i < count; ++i) copy_by_engine(copies[i], stream);
  else
    for (std::size_t i = 0; i < count; i += max_planes)
      copy_by_threads(copies + i, std::min(max_planes, count - i), stream);
}

}  // namespace usp::device
