// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"
#include "usp/planner/detail/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

constexpr int max_hosts = 8;     ///< drawn; the others repeat the pattern
constexpr int max_devices = 32;  ///< drawn of one host
constexpr double cell_width = 62, cell_height = 44, gap = 6, per_row = 4;

struct Seat {
  int rank = -1;  ///< of the world
  int replica = 0, row = 0, column = 0;
};

/// What every device does; index = device.
std::vector<Seat> seats_of(const topology::Cluster& cluster, const Choice& choice, int pipeline) {
  std::vector<Seat> seats(cluster.devices.size());
  const std::vector<int> devices = world_devices(choice.mesh, choice.placement, pipeline);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const auto device = static_cast<std::size_t>(devices[rank]);
    if (devices[rank] < 0 || device >= seats.size()) continue;
    const int slot = static_cast<int>(rank) / choice.tensor();
    const int p = slot % choice.mesh.size();
    seats[device] = {static_cast<int>(rank), slot / choice.mesh.size(), choice.mesh.ring_of(p),
                     choice.mesh.ulysses_of(p)};
  }
  return seats;
}

struct Drawing {
  const topology::Cluster& cluster;
  const Choice& choice;
  const std::vector<Seat>& seats;
};

void draw_host(Svg& svg, const Drawing& drawing, const topology::Node& node, double x, double y, double width,
               double height) {
  svg.rect(x, y, width, height, "box");
  svg.text(x + gap, y + 15, fmt::format("host {}", node.id), "strong");
  int shown = 0;
  for (const topology::Device& device : drawing.cluster.devices) {
    if (device.node != node.id || shown == max_devices) continue;
    const int column = shown % static_cast<int>(per_row), row = shown / static_cast<int>(per_row);
    const double left = x + gap + column * (cell_width + gap);
    const double top = y + 22 + row * (cell_height + gap);
    const Seat& seat = drawing.seats[static_cast<std::size_t>(device.id)];
    const bool by_row = drawing.choice.mesh.ring() > 1;
    const int hue = by_row ? seat.row : drawing.choice.data() > 1 ? seat.replica : seat.column;
    const std::string place = fmt::format("r{} u{}", seat.row, seat.column);
    svg.rect(left, top, cell_width, cell_height,
             seat.rank < 0 ? "box" : "tint " + colour(static_cast<std::size_t>(hue)),
             fmt::format("device {}: rank {}, ring row {}, ulysses {}, replica {}", device.id, seat.rank,
                         seat.row, seat.column, seat.replica));
    svg.text(left + cell_width / 2, top + 18, seat.rank < 0 ? "idle" : std::to_string(seat.rank),
             "mid strong");
    if (seat.rank >= 0) svg.text(left + cell_width / 2, top + 35, place, "mid small");
    ++shown;
  }
}

int devices_of(const topology::Cluster& cluster, int node) {
  return static_cast<int>(std::count_if(cluster.devices.begin(), cluster.devices.end(),
                                        [&](const topology::Device& d) { return d.node == node; }));
}

std::string picture(const Drawing& drawing) {
  const topology::Cluster& cluster = drawing.cluster;
  const int hosts = std::min<int>(max_hosts, static_cast<int>(cluster.nodes.size()));
  int most = 1;
  for (int n = 0; n < hosts; ++n) most = std::max(most, std::min(max_devices, devices_of(cluster, n)));
  const double rows = std::ceil(most / per_row), columns = std::min<double>(per_row, most);
  const double width = std::max(120.0, columns * (cell_width + gap) + gap);
  const double height = 22 + rows * (cell_height + gap) + gap;
  const int across = hosts == 4 ? 2 : std::min(3, hosts);
  Svg svg(
      across * (width + 12) + 4, std::ceil(hosts / static_cast<double>(across)) * (height + 12) + 4,
      "The mesh on the machine",
      "Hosts as boxes, devices inside them with their rank; coloured by ring row, or by replica or ulysses "
      "rank where the ring has one row.");
  for (int n = 0; n < hosts; ++n) {
    const int column = n % across, row = n / across;
    draw_host(svg, drawing, cluster.nodes[static_cast<std::size_t>(n)], 4 + column * (width + 12),
              4 + row * (height + 12), width, height);
  }
  return svg.str();
}

}  // namespace

std::string mesh_section(const ReportInput& input) {
  const topology::Cluster& cluster = *input.request->cluster;
  const Choice& choice = input.plan->best().choice;
  const int pipeline = pipeline_of(*input.request, choice);
  const std::vector<Seat> seats = seats_of(cluster, choice, pipeline);
  std::string text = fmt::format(
      "<section id=\"mesh\"><h2>The mesh on the machine</h2>\n<p>The number is the rank; r is its ring row, "
      "u its place in the ulysses group. {}</p>\n{}",
      choice.mesh.ring() > 1 ? "A colour is a ring row."
      : choice.data() > 1    ? "A colour is a data-parallel replica."
                             : "A colour is a place in the ulysses group.",
      picture({cluster, choice, seats}));
  const auto hosts = static_cast<int>(cluster.nodes.size());
  if (hosts > max_hosts)
    text += fmt::format("<p class=\"note\">{} more hosts are not drawn.</p>\n", hosts - max_hosts);
  std::vector<std::vector<std::string>> rows = {{"axis", "degree", "first group", "links it uses"}};
  for (const AxisView& axis :
       axes_of(cluster, choice.mesh, choice.placement, pipeline, input.request->execution.transport))
    rows.push_back({axis.name, std::to_string(axis.degree),
                    axis.groups.empty() ? "" : rank_list(axis.groups.front()), axis.where});
  return fmt::format("{}{}</section>\n", text, html_table("Axes and the links they use", rows, 9));
}

}  // namespace usp
