// SPDX-License-Identifier: Apache-2.0
// What a first call with cuDNN pays before it computes, on one GPU:
//   bench_cuda_setup [TOKENS]
// Opens the library, plans the graphs of a zigzag ring of two over that many tokens (16 heads of 128, bf16),
// then those of other lengths one after another and side by side, each thread with a handle of its own; then
// runs each graph twice. Prints milliseconds.
#include "cudnn/graphs.hpp"
#include "options.hpp"

#include "usp/device/device.hpp"

#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace usp::bench {
namespace {

using kernels::cudnn::Direction;
using kernels::cudnn::GraphKey;
using kernels::cudnn::PlannedGraph;

constexpr i64 heads = 16, width = 128;

class Watch {
 public:
  [[nodiscard]] double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

[[nodiscard]] GraphKey key_of(Direction direction, i64 q_rows, i64 k_rows, bool causal) {
  GraphKey key;
  key.direction = direction;
  key.batch = 1, key.q_heads = heads, key.kv_heads = heads;
  key.q_rows = q_rows, key.k_rows = k_rows, key.dqk = width, key.dv = width;
  if (causal) key.right_bound = 0;
  const auto dense = [](i64 rows) {
    return kernels::cudnn::Strides{rows * heads * width, heads * width, width};
  };
  key.q = key.o = dense(q_rows);
  key.k = key.v = dense(k_rows);
  if (direction == Direction::backward) {
    key.d_o = key.dq = dense(q_rows);
    key.dk = key.dv_out = dense(k_rows);
  }
  return key;
}

/// Diagonal blocks, and those before and after them in the other rank's chunks.
[[nodiscard]] std::vector<GraphKey> keys_of(i64 tokens) {
  std::vector<GraphKey> keys;
  const i64 chunk = tokens / 4;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    keys.push_back(key_of(direction, chunk, chunk, true));
    keys.push_back(key_of(direction, chunk, chunk, false));
    keys.push_back(key_of(direction, 2 * chunk, chunk, false));
    keys.push_back(key_of(direction, chunk, 2 * chunk, false));
  }
  return keys;
}

void run_twice(const GraphKey& key, const PlannedGraph& planned, const device::Stream& stream) {
  const int device = stream.device();
  const i64 q_bytes = key.q_rows * heads * width * 2, k_bytes = key.k_rows * heads * width * 2;
  std::vector<std::unique_ptr<device::DeviceBuffer>> buffers;
  const auto room = [&](i64 bytes) {
    buffers.push_back(std::make_unique<device::DeviceBuffer>(device, bytes));
    return buffers.back()->data();
  };
  kernels::cudnn::GraphMemory m;
  m.q = room(q_bytes), m.k = room(k_bytes), m.v = room(k_bytes), m.d_o = room(q_bytes);
  m.o = room(q_bytes), m.stats = room(key.q_rows * heads * 4);
  m.dq = room(q_bytes), m.dk = room(k_bytes), m.dv = room(k_bytes);
  std::byte* const workspace = room(planned.graph->workspace_bytes() + 1);
  for (const char* which : {"first", "second"}) {
    const Watch watch;
    planned.graph->run(m, workspace, stream.get());
    const double enqueued = watch.ms();
    stream.synchronize();
    std::printf("  %s run: enqueued %.2f, ended %.2f\n", which, enqueued, watch.ms());
  }
}

void measure(i64 tokens) {
  const Watch context;
  const device::Stream stream(0);
  const device::DeviceScope scope(0);
  std::printf("context %.1f\n", context.ms());
  const Watch opened;
  const std::unique_ptr<kernels::cudnn::Library> library = kernels::cudnn::open_library();
  std::printf("library and handle %.1f\n", opened.ms());
  std::vector<PlannedGraph> graphs;
  for (const GraphKey& key : keys_of(tokens)) {
    const Watch watch;
    graphs.push_back(library->plan(key));
    std::printf("plan %s %lld x %lld%s %.1f %s\n",
                key.direction == Direction::forward ? "forward" : "backward",
                static_cast<long long>(key.q_rows), static_cast<long long>(key.k_rows),
                key.right_bound == 0 ? " causal" : "", watch.ms(), graphs.back().unsupported_reason.c_str());
  }
  const Watch one_by_one;
  for (const GraphKey& key : keys_of(tokens + 512)) (void)library->plan(key);
  std::printf("8 other plans one by one %.1f\n", one_by_one.ms());
  const Watch side_by_side;
  std::vector<std::future<PlannedGraph>> planned;
  for (const GraphKey& key : keys_of(tokens + 1024))
    planned.push_back(std::async(std::launch::async, [key] {
      const device::DeviceScope of_thread(0);
      return kernels::cudnn::open_library()->plan(key);
    }));
  for (auto& graph : planned) (void)graph.get();
  std::printf("8 other plans side by side %.1f\n", side_by_side.ms());
  const std::vector<GraphKey> keys = keys_of(tokens);
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (graphs[i].graph != nullptr) run_twice(keys[i], graphs[i], stream);
}

}  // namespace
}  // namespace usp::bench

int main(int argc, char** argv) try {
  usp::bench::Options options(argc, argv);
  usp::bench::measure(options.number<usp::i64>(0, 65536));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
