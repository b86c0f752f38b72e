// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace usp::test {

/// Rows that together hold every pair of levels of every two factors; greedy, seeded, the same everywhere.
/// @param levels  number of levels per factor
[[nodiscard]] inline std::vector<std::vector<int>> pairwise(const std::vector<int>& levels,
                                                            std::uint64_t seed) {
  std::mt19937_64 random(seed);
  using Pair = std::tuple<std::size_t, int, std::size_t, int>;
  std::set<Pair> open;
  for (std::size_t a = 0; a < levels.size(); ++a)
    for (std::size_t b = a + 1; b < levels.size(); ++b)
      for (int x = 0; x < levels[a]; ++x)
        for (int y = 0; y < levels[b]; ++y) open.insert({a, x, b, y});
  const auto gain = [&](const std::vector<int>& row) {
    int count = 0;
    for (std::size_t a = 0; a < row.size(); ++a)
      for (std::size_t b = a + 1; b < row.size(); ++b)
        count += static_cast<int>(open.count({a, row[a], b, row[b]}));
    return count;
  };
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> best;
    int most = -1;
    for (int attempt = 0; attempt < 30; ++attempt) {
      std::vector<int> row;
      for (const int n : levels) row.push_back(static_cast<int>(random() % static_cast<unsigned>(n)));
      // At least one open pair is in every row, so that the search ends.
      const auto& [a, x, b, y] = *open.begin();
      row[a] = x, row[b] = y;
      if (const int g = gain(row); g > most) most = g, best = row;
    }
    for (std::size_t a = 0; a < best.size(); ++a)
      for (std::size_t b = a + 1; b < best.size(); ++b) open.erase({a, best[a], b, best[b]});
    rows.push_back(best);
  }
  return rows;
}

}  // namespace usp::test
