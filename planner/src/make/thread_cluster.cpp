// SPDX-License-Identifier: Apache-2.0
// The machine of plans for threads of one host.
#include "usp/base/text.hpp"
#include "usp/planner/plan_attention.hpp"

#include <fmt/format.h>

namespace usp {

topology::Cluster thread_cluster(int ranks) {
  const auto guess = [](double value) {
    return topology::Quantity{value, topology::Provenance::guess, "one thread of a host"};
  };
  topology::Cluster cluster;
  cluster.name = fmt::format("{} of one host", counted(ranks, "thread"));
  topology::DeviceSpec thread;
  thread.name = "thread";
  thread.bf16_tflops = thread.fp16_tflops = thread.fp32_tflops = guess(0.05);
  thread.memory_bytes = guess(4e9);
  thread.memory_gb_s = guess(8);
  cluster.specs = {thread};
  topology::Node node;
  node.numa_count = 1;
  node.pcie_gb_s = guess(8);
  node.numa_gb_s = guess(8);
  cluster.nodes = {node};
  for (int id = 0; id < ranks; ++id) {
    topology::Device device;
    device.id = device.local = id;
    device.numa = 0;
    cluster.devices.push_back(device);
    cluster.spec_of_device.push_back(0);
  }
  cluster.fabric.kind = topology::FabricKind::none;
  cluster.notes.emplace_back("threads of this host: every rate is a guess, times are uncalibrated");
  return cluster;
}

}  // namespace usp
