// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/network_rates.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace usp {

double Efficiency::band() const {
  return std::max(high / value, value / low) - 1;
}

Efficiency inter_node_hop_efficiency() {
  return {0.9, 0.7, 0.95, "16 MB over 400 Gb/s: 336 us of wire and 20 to 30 us of latency", false};
}

Efficiency inter_node_alltoall_efficiency(bool rails) {
  if (rails) return {0.72, 0.5, 0.8, "4 DGX-H100: 48 of 64.6 GB/s; .70 to .74 over rails", false};
  return {0.6, 0.24, 0.8, "4 DGX-H100: 48 of 64.6 GB/s; GB300 racks of a cloud: 47 of 99 to 198 GB/s", false};
}

Efficiency inter_node_ring_efficiency(int nodes, double bytes) {
  static constexpr double by_nodes[3][7] = {{.32, .24, .13, .05, .044, .021, .0087},
                                            {.85, .77, .69, .57, .387, .209, .103},
                                            {.92, .93, .90, .76, .74, .563, .315}};
  static constexpr double log_bytes[3] = {24, 28, 30};
  const double n = std::clamp(std::log2(static_cast<double>(std::max(nodes, 2))) - 1, 0.0, 6.0);
  const auto column = std::min<std::size_t>(static_cast<std::size_t>(n), 5);
  const double wn = n - static_cast<double>(column);
  double row[3];
  for (std::size_t i = 0; i < std::size(row); ++i)
    row[i] = by_nodes[i][column] * std::pow(by_nodes[i][column + 1] / by_nodes[i][column], wn);
  const double x = std::log2(std::max(bytes, 1.0));
  double value = row[2];
  if (x <= log_bytes[0]) {
    value = row[0];  // no data below 16 MB: its share of the line rate, on top of the latency of a message
  } else if (x < log_bytes[2]) {
    const std::size_t i = x < log_bytes[1] ? 0 : 1;
    value = row[i] * std::pow(row[i + 1] / row[i], (x - log_bytes[i]) / (log_bytes[i + 1] - log_bytes[i]));
  }
  return {value, value / 2, std::min(0.95, value * 1.5), "SimAI efficiency table of NIC collectives", false};
}

}  // namespace usp
