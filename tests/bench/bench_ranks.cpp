// SPDX-License-Identifier: Apache-2.0
// What a mesh costs beside one rank that does the same work on the same cores: run it with `taskset -c 0`, so
// that ranks take turns and every added instruction shows. Prints one table; times are medians, taken in
// turns.
#include "usp/comm/threads.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/runtime/attention.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using namespace usp;

constexpr int heads = 4, head_dim = 128, repeats = 3;

[[nodiscard]] std::vector<float> noise(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

/// Seconds of forward and backward of one mesh, from the first rank's start to the last one's end.
[[nodiscard]] double measure(const Mesh& mesh, i64 tokens) {
  AttentionPlan plan;
  plan.mesh = mesh;
  plan.shape = {1, tokens, tokens, heads, heads, head_dim, head_dim, DType::fp32};
  plan.band = {0, unbounded};
  double seconds = 0;
  comm::run_threads(mesh.size(), {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    AttentionOperator op(plan, comm, *kernel);
    op.set_batch(Documents::single(tokens, tokens));
    const auto rows = static_cast<i64>(op.q_tokens().size());
    const i64 elements = rows * heads * head_dim;
    std::vector<float> q = noise(elements, 1), k = noise(elements, 2), v = noise(elements, 3),
                       d_o = noise(elements, 4);
    std::vector<float> o(q.size()), dq(q.size()), dk(q.size()), dv(q.size());
    const auto view = [&](std::vector<float>& x) {
      return kernels::View(reinterpret_cast<std::byte*>(x.data()), DType::fp32, 1, rows, {0, heads},
                           head_dim);
    };
    const AttentionInputs in{view(q), view(k), view(v)};
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    op.forward(in, view(o));
    op.backward(in, view(d_o), {view(dq), view(dk), view(dv)});
    comm.barrier();
    if (comm.rank() == 0)
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const i64 tokens = argc > 1 ? std::atoll(argv[1]) : 8192;
  const std::vector<Mesh> meshes = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 4, 1}, {1, 2, 2}, {1, 1, 4}};
  std::vector<std::vector<double>> times(meshes.size());
  for (int i = 0; i < repeats; ++i)
    for (std::size_t m = 0; m < meshes.size(); ++m) times[m].push_back(measure(meshes[m], tokens));
  std::printf("causal, %lld tokens, %d heads of %d, fp32, forward + backward\n",
              static_cast<long long>(tokens), heads, head_dim);
  std::printf("%6s %8s %10s %8s\n", "ring", "ulysses", "seconds", "ratio");
  for (std::size_t m = 0; m < meshes.size(); ++m) {
    for (std::vector<double>* list : {&times[m], &times[0]}) std::sort(list->begin(), list->end());
    std::printf("%6d %8d %10.3f %8.3f\n", meshes[m].ring(), meshes[m].ulysses, times[m][repeats / 2],
                times[m][repeats / 2] / times[0][repeats / 2]);
  }
}
