// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/plan.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace usp {

void check_degrees(const PlanRequest& request) {
  const Constraints& fixed = request.fixed;
  const i64 world = static_cast<i64>(request.cluster->devices.size());
  std::vector<std::pair<std::string, i64>> parts;
  if (fixed.ring) parts.emplace_back("ring", *fixed.ring);
  if (fixed.ulysses) parts.emplace_back("ulysses", *fixed.ulysses);
  if (fixed.tensor) parts.emplace_back("tensor", *fixed.tensor);
  if (fixed.data) parts.emplace_back("data", *fixed.data);
  if (request.workload.pipeline > 1) parts.emplace_back("pipeline", request.workload.pipeline);
  i64 product = 1;
  std::string text;
  for (const auto& [name, degree] : parts) {
    product *= degree;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, degree);
    if (product > world) break;
  }
  const bool all = fixed.ring && fixed.ulysses && fixed.tensor && fixed.data;
  if (product == world || (product < world && world % product == 0 && !all)) return;
  std::vector<std::string> remedies;
  const i64 rest = fixed.data ? product / *fixed.data : product;
  if (product <= world && world % rest == 0)
    remedies.push_back(fmt::format("use --data {}, or leave a degree to the planner", world / rest));
  else
    remedies.push_back(
        fmt::format("give degrees whose product divides {}, or a cluster with a multiple of {}", world,
                    counted(product, "device")));
  throw Infeasible(fmt::format("{} is {} {}, the cluster has {}", text, product,
                               product > world ? "ranks or more" : "ranks", counted(world, "device")),
                   remedies);
}

}  // namespace usp
