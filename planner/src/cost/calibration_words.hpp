// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace usp {

/// Transport of a curve between ranks that are threads or processes of hosts, whatever carries them.
inline constexpr std::string_view host_transport = "host";

}  // namespace usp
