// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/call_stream.hpp"
#include "usp/device/check.cuda.hpp"

#include <cuda_runtime_api.h>
#include <functional>

namespace usp::test {

/// Captures what `body` enqueues; the capture ends also when it throws.
class Graph {
 public:
  Graph(const device::CallStream& stream, const std::function<void()>& body) {
    device::check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream.get(), &graph_);
      if (graph_ != nullptr) cudaGraphDestroy(graph_);
      throw;
    }
    device::check_cuda(cudaStreamEndCapture(stream.get(), &graph_), "cudaStreamEndCapture");
    device::check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay(const device::CallStream& stream) const {
    device::check_cuda(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace usp::test
