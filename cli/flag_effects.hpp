// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>

/// Flags that another flag, given beside them, leaves without an effect: UsageError names both.
namespace usp::cli {

struct GivenFlag {
  const char* name;
  bool given;
};

/// Of `flags`, none goes with --ring 1.
void refuse_without_ring(std::optional<int> ring, std::initializer_list<GivenFlag> flags);
/// --order, which is given, arranges two axes.
void refuse_order_of_one_axis(std::optional<int> ring, std::optional<int> ulysses);
/// Of `flags`, none goes with --forward-only.
void refuse_without_backward(bool forward_only, std::initializer_list<GivenFlag> flags);

/// Of `flags`, none goes with a mesh of one device, which exchanges nothing.
void refuse_without_exchange(int devices, std::initializer_list<GivenFlag> flags);

}  // namespace usp::cli
