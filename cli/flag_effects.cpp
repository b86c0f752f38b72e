// SPDX-License-Identifier: Apache-2.0
#include "flag_effects.hpp"

#include "usp/base/error.hpp"

#include <string>

namespace usp::cli {

void refuse_without_ring(std::optional<int> ring, std::initializer_list<GivenFlag> flags) {
  if (ring != 1) return;
  for (const GivenFlag& flag : flags)
    if (flag.given)
      throw UsageError(std::string(flag.name) +
                       " is of a ring, and --ring 1 is none: one row owns all tokens and exchanges nothing; "
                       "leave one of them out");
}

void refuse_order_of_one_axis(std::optional<int> ring, std::optional<int> ulysses) {
  if (ring != 1 && ulysses != 1) return;
  throw UsageError(std::string("--order arranges the ring and Ulysses axes, and with ") +
                   (ring == 1 ? "--ring 1" : "--ulysses 1") +
                   " only one of them has ranks; leave one of them out");
}

void refuse_without_backward(bool forward_only, std::initializer_list<GivenFlag> flags) {
  if (!forward_only) return;
  for (const GivenFlag& flag : flags)
    if (flag.given)
      throw UsageError(std::string(flag.name) +
                       " is of the backward pass and the update after it, which --forward-only leaves out; "
                       "drop one of them");
}

void refuse_without_exchange(int devices, std::initializer_list<GivenFlag> flags) {
  if (devices != 1) return;
  for (const GivenFlag& flag : flags)
    if (flag.given)
      throw UsageError(
          std::string(flag.name) +
          " is of transfers, and --ring 1 --ulysses 1 is one device, which has none; leave it out");
}

}  // namespace usp::cli
