// SPDX-License-Identifier: Apache-2.0
#include "timer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace usp::measure {

constexpr double least_s = 1e-9;  ///< a clock that stands still
constexpr int most_calls = 1000;
constexpr double short_sample_s = 0.1;  ///< beside which ranks start together

double Timer::slowest(double mine) {
  std::vector<double> all(static_cast<std::size_t>(control_.size()));
  control_.all_gather(&mine, all.data(), sizeof mine);
  return *std::max_element(all.begin(), all.end());
}

double Timer::elapsed_s() {
  double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  control_.broadcast(&seconds, sizeof seconds, 0);
  return seconds;
}

double Timer::once(const std::function<void()>& call, int count) {
  if (before_sample_) before_sample_();
  clock_.settle();
  control_.barrier();
  clock_.begin();
  for (int i = 0; i < count; ++i) call();
  return std::max(least_s, slowest(clock_.end()) / count);
}

Sample Timer::measure(const std::function<void()>& call) {
  static_cast<void>(once(call, 1));  // connections, pages and caches
  const double first = once(call, 1);
  const double least = std::min(1.0 * pace_.least_calls, std::ceil(short_sample_s / first));
  const double each = least > 1 ? once(call, static_cast<int>(least)) : first;
  const double lasting = std::ceil(pace_.sample_s / each);
  const int count = static_cast<int>(std::clamp(lasting, std::max(1.0, least), 1.0 * most_calls));
  std::vector<double> samples;
  for (int i = 0; i < pace_.samples; ++i) samples.push_back(once(call, count));
  std::sort(samples.begin(), samples.end());
  const double median = (samples[(samples.size() - 1) / 2] + samples[samples.size() / 2]) / 2;
  // Of five and more, what another program did to one of them does not count.
  const std::size_t cut = samples.size() >= 5 ? 1 : 0;
  return {median, (samples[samples.size() - 1 - cut] - samples[cut]) / (2 * median)};
}

}  // namespace usp::measure
