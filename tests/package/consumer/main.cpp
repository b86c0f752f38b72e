// SPDX-License-Identifier: Apache-2.0
#include "usp/base/units.hpp"
#include "usp/base/version.hpp"
#include "usp/topology/cluster.hpp"

#include <cstdio>

int main() {
  const usp::topology::Cluster empty;
  const auto tokens = usp::parse_tokens("128K", "--seq");
  std::printf("usp %.*s: %lld tokens\n", static_cast<int>(usp::version.size()), usp::version.data(),
              static_cast<long long>(tokens));
  return empty.nodes.empty() ? 0 : 1;
}
