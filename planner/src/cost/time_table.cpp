// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/transfer_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace usp {
namespace {

// A double's exponent and the first three bits of its fraction number the pieces in order of size.
constexpr int piece_shift = 52 - 3;
static_assert(TimeTable::pieces == 8);
constexpr std::uint64_t first_piece = static_cast<std::uint64_t>(1023 + TimeTable::first_octave) << 3U;

}  // namespace

std::vector<std::pair<double, double>> isotonic(std::vector<std::pair<double, double>> points) {
  std::sort(points.begin(), points.end());
  struct Pool {
    double log_sum;
    std::size_t count;
    std::vector<double> bytes;
  };
  std::vector<Pool> pools;
  for (std::size_t i = 0; i < points.size();) {
    Pool pool{0, 0, {points[i].first}};
    for (; i < points.size() && points[i].first == pool.bytes.front(); ++i, ++pool.count)
      pool.log_sum += std::log(points[i].second);
    pools.push_back(std::move(pool));
    while (pools.size() > 1) {
      Pool& last = pools.back();
      Pool& before = pools[pools.size() - 2];
      if (before.log_sum / static_cast<double>(before.count) <=
          last.log_sum / static_cast<double>(last.count))
        break;
      before.log_sum += last.log_sum;
      before.count += last.count;
      before.bytes.insert(before.bytes.end(), last.bytes.begin(), last.bytes.end());
      pools.pop_back();
    }
  }
  std::vector<std::pair<double, double>> fitted;
  for (const Pool& pool : pools)
    for (const double bytes : pool.bytes)
      fitted.emplace_back(bytes, std::exp(pool.log_sum / static_cast<double>(pool.count)));
  return fitted;
}

double TimeTable::node_bytes(int node) {
  return std::ldexp(1.0 + static_cast<double>(node % pieces) / pieces, first_octave + node / pieces);
}

TimeTable::TimeTable(const std::array<double, nodes>& node_seconds) : seconds_(node_seconds) {
  for (int i = 0; i + 1 < nodes; ++i) {
    const auto k = static_cast<std::size_t>(i);
    expects(seconds_[k + 1] >= seconds_[k], "a time table must not fall with bytes");
    per_byte_[k] = (seconds_[k + 1] - seconds_[k]) / (node_bytes(i + 1) - node_bytes(i));
  }
  per_byte_[nodes - 1] = seconds_[nodes - 1] / node_bytes(nodes - 1);
}

TimeTable TimeTable::through(std::vector<std::pair<double, double>> bytes_seconds) {
  expects(!bytes_seconds.empty(), "a time table needs a point");
  const auto points = isotonic(std::move(bytes_seconds));
  std::array<double, nodes> seconds{};
  std::size_t next = 0;
  for (int i = 0; i < nodes; ++i) {
    const double bytes = node_bytes(i);
    while (next < points.size() && points[next].first <= bytes) ++next;
    double& t = seconds[static_cast<std::size_t>(i)];
    if (next == 0) {
      t = points.front().second;
    } else if (next == points.size()) {
      t = points.back().second * bytes / points.back().first;
    } else {
      const auto& [b0, t0] = points[next - 1];
      const auto& [b1, t1] = points[next];
      t = t0 * std::pow(t1 / t0, std::log(bytes / b0) / std::log(b1 / b0));
    }
    if (i > 0) t = std::max(t, seconds[static_cast<std::size_t>(i - 1)]);  // rounding of pow
  }
  return TimeTable(seconds);
}

double TimeTable::at(double bytes) const noexcept {
  const auto word = std::bit_cast<std::uint64_t>(bytes);
  const std::uint64_t piece = word >> piece_shift;
  if (bytes <= 0 || piece < first_piece) return seconds_[0];
  const std::uint64_t index = piece - first_piece;
  if (index >= nodes - 1) return per_byte_[nodes - 1] * bytes;
  const auto start = std::bit_cast<double>(piece << piece_shift);
  return seconds_[index] + per_byte_[index] * (bytes - start);
}

}  // namespace usp
