// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What the readers of topology texts share. Not installed.
namespace usp::topology {

/// Fills `domains` and each device's `nvlink_domain`: connected components, of two devices or more, over
/// NVLinks or xGMI. `switched` stays false: only a reader knows what its input says about switches.
void group_nvlink_domains(Cluster& cluster);

/// Fills each device's `nics` with those at the least distance. `distance[device][nic]` is the path between
/// them. Where the paths do not distinguish NICs the list stays empty and a note says so: the same PHB, NODE
/// or SYS in every cell (a hypervisor hides the switches), or PHB or SYS from one device to each of several
/// NICs.
void assign_nearest_nics(Cluster& cluster, const std::vector<std::vector<LinkKind>>& distance);

/// Throws InvalidInput for a text of more than 16 MiB, whose lines and tokens would take many times that:
/// no machine's topology and no log of nccl-tests comes near it.
void check_text_size(std::string_view text, const std::string& file);

/// Decimal digits only and at most `max_digits` of them; else empty.
[[nodiscard]] std::optional<int> small_number(std::string_view digits, std::size_t max_digits = 6);

/// Keeps `notes` bounded whatever a file holds: lists the first few of `ignored`, then counts the rest.
void note_ignored(std::vector<std::string>& notes, const std::vector<std::string>& ignored);

/// About `limit` bytes of text for a message: valid UTF-8 whatever comes in, control and broken bytes shown
/// as '?'.
[[nodiscard]] std::string excerpt(std::string_view text, std::size_t limit = 60);

}  // namespace usp::topology
