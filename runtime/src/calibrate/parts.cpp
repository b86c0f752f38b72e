// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include "kernel_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp::measure {
namespace {

constexpr NetworkOperation collectives[] = {NetworkOperation::alltoall, NetworkOperation::all_gather,
                                            NetworkOperation::reduce_scatter};

constexpr int most_paired_hosts = 8;  ///< 28 pairs

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

/// Counts of ranks that send at once: all up to eight, then every doubling.
std::vector<int> crowds(int least, int most, bool quick) {
  std::set<int> counts;
  for (int n = least; n <= most; n = !quick && n < 8 ? n + 1 : 2 * n) counts.insert(n);
  counts.insert(most);
  return {counts.begin(), counts.end()};
}

/// @param all the shape takes in every host and rank there is: the others refine it
void add_exchanges(std::vector<Part>& parts, const NetworkKey& shape, int most_groups, bool all) {
  for (const NetworkOperation operation : collectives)
    for (const int groups : std::set<int>{1, most_groups}) {
      Part part{.kind = Part::Kind::exchange, .key = shape, .optional = !all};
      part.key.operation = operation;
      part.key.groups = groups;
      parts.push_back(part);
    }
}

void add_hops(std::vector<Part>& parts, Part::Kind kind, int hosts, const std::vector<int>& counts) {
  for (const int ranks : counts)
    parts.push_back({.kind = kind,
                     .key = {NetworkOperation::hop, hosts, ranks, 1},
                     .optional = ranks != counts.front() && ranks != counts.back()});
}

/// Which of the hosts has a slower line than the others.
void add_pairs(std::vector<Part>& parts, int hosts) {
  for (int a = 0; a < hosts; ++a)
    for (int b = a + 1; b < hosts; ++b)
      parts.push_back({.kind = Part::Kind::exchange,
                       .key = {NetworkOperation::hop, hosts, 1, 1},
                       .first_host = a,
                       .second_host = b});
}

std::string counted(int n, const char* word) {
  return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}

}  // namespace

std::string Part::name() const {
  const std::string where =
      fmt::format("{} on {}", counted(key.ranks_per_host, "rank"), counted(key.hosts, "host"));
  switch (kind) {
    case Kind::copy:
      return "copies";
    case Kind::kernel:
      return fmt::format("kernel of head dim {} {}", head_dim, backward ? "backward" : "forward");
    case Kind::exchange:
      if (between_pair()) return fmt::format("hop between hosts {} and {}", first_host, second_host);
      return fmt::format("{} of {}, {} at once", word_of(key.operation), where, counted(key.groups, "group"));
    case Kind::interference:
      return fmt::format("kernel beside a hop of {}", where);
  }
  throw InternalError("a kind of measurement has no name");
}

std::size_t columns_of(Part::Kind kind) {
  return kind == Part::Kind::kernel ? 8 : 3;
}

std::vector<Part> parts_of(const Machine& machine, bool quick) {
  std::vector<Part> parts{{.kind = Part::Kind::copy}};
  for (const int head_dim : {64, 128})
    for (const bool backward : {false, true})
      if (!quick || head_dim == 64)
        parts.push_back({.kind = Part::Kind::kernel,
                         .head_dim = head_dim,
                         .backward = backward,
                         .optional = head_dim != 64});
  const int ranks = machine.ranks_per_host(), hosts = machine.host_count();
  if (hosts > 1) {
    add_hops(parts, Part::Kind::exchange, hosts, crowds(1, ranks, quick));
    if (hosts > 2 && hosts <= most_paired_hosts) add_pairs(parts, hosts);
    for (const int span : divisors(hosts))
      for (const int n : divisors(ranks))
        if (span > 1)
          add_exchanges(parts, {NetworkOperation::alltoall, span, n, 1}, ranks / n,
                        span == hosts && (n == 1 || n == ranks));
  }
  if (ranks > 1) {
    add_hops(parts, Part::Kind::exchange, 1, crowds(2, ranks, quick));
    for (const int n : divisors(ranks))
      if (n > 1) add_exchanges(parts, {NetworkOperation::alltoall, 1, n, 1}, ranks / n, n == ranks);
    if (!machine.shares_cores()) add_hops(parts, Part::Kind::interference, 1, {ranks});
  }
  if (hosts > 1 && !machine.shares_cores()) add_hops(parts, Part::Kind::interference, hosts, {ranks});
  return parts;
}

std::vector<GridCall> kernel_grid(int head_dim, i64 element_bytes, bool quick) {
  using Mask = KernelShape::Mask;
  struct Size {
    double heads, kv_heads;
    i64 rows, keys;
  };
  const std::vector<Size> square = {{1, 1, 64, 64},   {4, 1, 64, 64},     {2, 2, 128, 128},
                                    {4, 4, 256, 256}, {2, 1, 256, 256},   {8, 2, 256, 256},
                                    {2, 2, 512, 512}, {4, 1, 1024, 1024}, {2, 2, 2048, 2048}};
  const std::vector<Size> oblong = {{2, 2, 64, 512}, {2, 1, 512, 128}, {2, 2, 256, 1024}, {4, 4, 1024, 256}};
  const std::size_t most = quick ? 5 : square.size();
  std::vector<GridCall> grid;
  const auto add = [&](const Size& size, Mask mask, i64 window) {
    KernelShape shape{size.heads,
                      size.kv_heads,
                      head_dim,
                      head_dim,
                      static_cast<double>(size.rows),
                      0,
                      static_cast<double>(size.keys),
                      mask,
                      static_cast<int>(element_bytes)};
    shape.mean_keys = mean_keys(mask, size.rows, size.keys, window);
    grid.push_back({shape, window});
  };
  for (std::size_t i = 0; i < most; ++i) {
    add(square[i], Mask::causal, 0);
    add(square[i], Mask::full, 0);
    if (i < oblong.size() && (!quick || i < 2)) add(oblong[i], Mask::full, 0);
  }
  add({2, 2, 256, 256}, Mask::window, 64);
  if (!quick) add({2, 1, 1024, 1024}, Mask::window, 128);
  return grid;
}

}  // namespace usp::measure
