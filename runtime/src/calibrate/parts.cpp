// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include "kernel_call.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/schedule/backend.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

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
void add_exchanges(std::vector<Part>& parts, Part part, int most_groups, bool all) {
  for (const NetworkOperation operation : collectives)
    for (const int groups : std::set<int>{1, most_groups}) {
      part.kind = Part::Kind::exchange;
      part.key.operation = operation;
      part.key.groups = groups;
      part.optional = !all;
      parts.push_back(part);
    }
}

void add_hops(std::vector<Part>& parts, Part part, const std::vector<int>& counts) {
  for (const int ranks : counts) {
    part.key.operation = NetworkOperation::hop;
    part.key.ranks_per_host = ranks;
    part.optional = ranks != counts.front() && ranks != counts.back();
    parts.push_back(part);
  }
}

/// Which of the hosts has a slower line than the others.
void add_pairs(std::vector<Part>& parts, Part hop) {
  hop.key.ranks_per_host = 1;
  for (hop.first_host = 0; hop.first_host < hop.key.hosts; ++hop.first_host)
    for (hop.second_host = hop.first_host + 1; hop.second_host < hop.key.hosts; ++hop.second_host)
      parts.push_back(hop);
}

}  // namespace

std::string Part::name() const {
  const std::string by = transport ? fmt::format(" by {}", word_of(*transport)) : "";
  const std::string where =
      fmt::format("{} on {}", counted(key.ranks_per_host, "rank"), counted(key.hosts, "host"));
  switch (kind) {
    case Kind::copy:
      return "copies";
    case Kind::product:
      return "matrix products";
    case Kind::kernel:
      return fmt::format(
          "{} kernel of head dim {} {}", backend,
          head_dim == head_dim_v ? std::to_string(head_dim) : fmt::format("{}/{}", head_dim, head_dim_v),
          backward ? "backward" : "forward");
    case Kind::call:
      return fmt::format("call of the {} kernel", backend);
    case Kind::exchange:
      if (between_pair()) return fmt::format("hop between hosts {} and {}{}", first_host, second_host, by);
      return fmt::format("{} of {}, {} at once{}", word_of(key.operation), where,
                         counted(key.groups, "group"), by);
    case Kind::interference:
      return fmt::format("kernel beside a hop of {}{}", where, by);
  }
  throw InternalError("a kind of measurement has no name");
}

std::size_t columns_of(Part::Kind kind) {
  switch (kind) {
    case Part::Kind::kernel:
      return 8;
    case Part::Kind::product:
      return 5;
    case Part::Kind::call:
      return 2;
    case Part::Kind::interference:
      return 4;
    default:
      return 3;
  }
}

namespace {

/// Whether a backend computes both passes of these head dims by itself.
bool takes(const std::string& word, int qk, int v) {
  const std::optional<Backend> backend = find_backend(word);
  if (!backend) return true;  // the reference
  const schedule::KernelTraits& traits = (*backend)->takes;
  const i64 widest = std::max(qk, v);
  if (widest > traits.max_head_dim) return false;
  // Of the pair that is named for unequal dims the bound does not hold.
  const bool named = qk == traits.grad_dim_qk && v == traits.grad_dim_v;
  return named || ((qk == v || traits.any_unequal_head_dims) && widest <= traits.max_grad_head_dim);
}

void add_kernels(std::vector<Part>& parts, const Scope& scope) {
  const std::pair<int, int> square{64, 64}, wide{128, 128}, latent{192, 128};
  std::vector<std::pair<int, int>> dims{square, wide};
  if (scope.on_gpu) dims = {wide, square, latent};
  if (scope.quick) dims = {dims.front()};
  for (const std::string& kernel : scope.kernels)
    for (const auto& [qk, v] : dims)
      if (takes(kernel, qk, v))
        for (const bool backward : {false, true})
          parts.push_back({.kind = Part::Kind::kernel,
                           .backend = kernel,
                           .head_dim = qk,
                           .head_dim_v = v,
                           .backward = backward,
                           .optional = std::pair(qk, v) != dims.front()});
}

void add_between_hosts(std::vector<Part>& parts, const Machine& machine, const Scope& scope,
                       std::optional<Transport> transport) {
  const int ranks = machine.ranks_per_host(), hosts = machine.host_count();
  const Part by{.kind = Part::Kind::exchange, .transport = transport};
  Part hop = by;
  hop.key.hosts = hosts;
  add_hops(parts, hop, crowds(1, ranks, scope.quick));
  if (hosts > 2 && hosts <= most_paired_hosts) add_pairs(parts, hop);
  for (const int span : divisors(hosts))
    for (const int n : divisors(ranks)) {
      Part part = by;
      part.key = {NetworkOperation::alltoall, span, n, 1};
      if (span > 1) add_exchanges(parts, part, ranks / n, span == hosts && (n == 1 || n == ranks));
    }
}

void add_inside_hosts(std::vector<Part>& parts, const Machine& machine, const Scope& scope,
                      std::optional<Transport> transport) {
  const int ranks = machine.ranks_per_host();
  Part part{.kind = Part::Kind::exchange, .transport = transport};
  part.key.hosts = 1;
  add_hops(parts, part, crowds(2, ranks, scope.quick));
  for (const int n : divisors(ranks)) {
    part.key = {NetworkOperation::alltoall, 1, n, 1};
    if (n > 1) add_exchanges(parts, part, ranks / n, n == ranks);
  }
}

}  // namespace

std::vector<Part> parts_of(const Machine& machine, const Scope& scope) {
  std::vector<Part> parts{{.kind = Part::Kind::copy}, {.kind = Part::Kind::product}};
  add_kernels(parts, scope);
  for (const std::string& kernel : scope.kernels)
    parts.push_back({.kind = Part::Kind::call, .backend = kernel, .head_dim = 64, .head_dim_v = 64});
  const int ranks = machine.ranks_per_host(), hosts = machine.host_count();
  for (const std::optional<Transport> transport : scope.transports) {
    if (hosts > 1) add_between_hosts(parts, machine, scope, transport);
    if (ranks > 1) add_inside_hosts(parts, machine, scope, transport);
    for (const int span : std::set<int>{1, hosts})
      if ((scope.on_gpu || !machine.shares_cores()) && (span > 1 || ranks > 1))
        add_hops(parts,
                 {.kind = Part::Kind::interference,
                  .backend = scope.kernels.front(),
                  .key = {NetworkOperation::hop, span, ranks, 1},
                  .transport = transport},
                 {ranks});
  }
  return parts;
}

namespace {

struct GridSize {
  double heads, kv_heads;
  i64 rows, keys;
};
struct Grid {
  std::vector<GridSize> square, oblong;
  std::vector<std::pair<GridSize, i64>> windows;  ///< with their keys
};

/// The first of each kind of call, for --quick. Sizes come in an order of which every beginning spans short
/// and long calls: where the time ends a grid, what is left out lies between what was measured.
Grid look_at(const Grid& whole, std::ptrdiff_t squares) {
  return {{whole.square.begin(), whole.square.begin() + squares},
          {whole.oblong.begin(), whole.oblong.begin() + 2},
          {whole.windows.front()}};
}

/// Of a host, by what one core computes in milliseconds.
const Grid& host_grid(bool quick) {
  static const Grid whole{{{4, 1, 64, 64},
                           {2, 2, 512, 512},
                           {4, 4, 256, 256},
                           {1, 1, 64, 64},
                           {2, 1, 256, 256},
                           {4, 1, 1024, 1024},
                           {2, 2, 128, 128},
                           {2, 2, 2048, 2048},
                           {8, 2, 256, 256}},
                          {{2, 2, 64, 512}, {2, 1, 512, 128}, {2, 2, 256, 1024}, {4, 4, 1024, 256}},
                          {{{2, 2, 256, 256}, 64}, {{2, 1, 1024, 1024}, 128}}};
  static const Grid look = look_at(whole, 5);
  return quick ? look : whole;
}

/// Of a GPU: few and many tiles for its multiprocessors, ring blocks, groups of heads; to 32K tokens.
const Grid& device_grid(bool quick) {
  static const Grid whole{{{16, 16, 4096, 4096},
                           {2, 2, 512, 512},
                           {16, 16, 16384, 16384},
                           {8, 8, 2048, 2048},
                           {32, 8, 1024, 1024},
                           {32, 8, 4096, 4096},
                           {16, 16, 8192, 8192},
                           {16, 16, 32768, 32768},
                           {16, 16, 1024, 1024},
                           {8, 1, 16384, 16384}},
                          {{16, 16, 1024, 8192}, {16, 4, 8192, 1024}, {16, 16, 4096, 16384}},
                          {{{16, 16, 8192, 8192}, 1024}, {{16, 16, 16384, 16384}, 4096}}};
  static const Grid look = look_at(whole, 7);
  return quick ? look : whole;
}

}  // namespace

std::vector<GridCall> kernel_grid(const Part& part, i64 element_bytes, const Scope& scope) {
  using Mask = KernelShape::Mask;
  std::vector<GridCall> grid;
  const auto add = [&](const GridSize& size, Mask mask, i64 window) {
    KernelShape shape{size.heads,
                      size.kv_heads,
                      part.head_dim,
                      part.head_dim_v,
                      static_cast<double>(size.rows),
                      0,
                      static_cast<double>(size.keys),
                      mask,
                      static_cast<int>(element_bytes)};
    shape.mean_keys = mean_keys(mask, size.rows, size.keys, window);
    grid.push_back({shape, window});
  };
  const Grid& sizes = scope.on_gpu ? device_grid(scope.quick) : host_grid(scope.quick);
  for (std::size_t i = 0; i < sizes.square.size(); ++i) {
    add(sizes.square[i], Mask::causal, 0);
    add(sizes.square[i], Mask::full, 0);
    if (i < sizes.oblong.size()) add(sizes.oblong[i], Mask::full, 0);
  }
  for (const auto& [size, window] : sizes.windows) add(size, Mask::window, window);
  return grid;
}

std::vector<ProductShape> product_grid(const Scope& scope) {
  if (!scope.on_gpu) {
    if (scope.quick) return {{128, 128, 128}, {256, 256, 256}};
    return {{128, 128, 128}, {256, 256, 256}, {512, 512, 512}};
  }
  if (scope.quick) return {{4096, 4096, 4096}, {8192, 8192, 8192}};
  // Token rows by the widths of layers of 7B to 70B models.
  return {{4096, 4096, 4096},  {8192, 8192, 8192},   {8192, 14336, 4096}, {8192, 4096, 14336},
          {16384, 8192, 8192}, {16384, 28672, 8192}, {8192, 1280, 8192}};
}

}  // namespace usp::measure
