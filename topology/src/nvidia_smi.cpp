// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/nvidia_smi.hpp"

#include "nvidia_smi_matrix.hpp"
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace usp::topology {
namespace {

using smi::Cell;
using smi::Matrix;
using smi::Row;

/// The most NVLinks one device has been built with (NVIDIA H100, H200, B200: 18).
constexpr int max_lanes_of_a_device = 18;

/// Turns a matrix of labels and cells into a cluster; every check of consistency is here.
class ClusterBuilder {
 public:
  ClusterBuilder(Matrix matrix, std::string file) : matrix_(std::move(matrix)), file_(std::move(file)) {}

  Cluster build() {
    cluster_.notes = std::move(matrix_.notes);
    order_devices();
    order_nics();
    check_symmetry();
    add_links();
    group_nvlink_domains(cluster_);
    for (NvlinkDomain& domain : cluster_.domains) judge_switch(domain);
    add_affinity();
    note_ignored(cluster_.notes, matrix_.ignored);
    return std::move(cluster_);
  }

 private:
  [[nodiscard]] const Row& row_of(std::size_t column) const {
    return matrix_.rows[*matrix_.columns[column].row];
  }
  [[nodiscard]] const Cell& cell(std::size_t row, std::size_t column) const {
    return row_of(row).cells[column];
  }

  void order_devices() {
    for (std::size_t c = 0; c < matrix_.columns.size(); ++c)
      if (matrix_.columns[c].gpu) gpus_.push_back(c);
    std::sort(gpus_.begin(), gpus_.end(), [&](std::size_t x, std::size_t y) {
      return *matrix_.columns[x].gpu < *matrix_.columns[y].gpu;
    });
    for (std::size_t column : gpus_) {
      if (!matrix_.columns[column].row)
        throw InvalidInput(
            {file_, matrix_.columns[column].line, matrix_.columns[column].label},
            fmt::format(
                "the header names {} but this one has no row; give the whole output of nvidia-smi topo -m",
                counted(gpus_.size(), "device")));
      Device device;
      device.id = static_cast<int>(cluster_.devices.size());
      device.local = *matrix_.columns[column].gpu;
      device.numa = row_of(column).numa;
      cluster_.devices.push_back(device);
      cluster_.spec_of_device.push_back(0);
    }
    cluster_.specs.emplace_back();
    cluster_.nodes.emplace_back();
    cluster_.fabric.kind = FabricKind::none;
    note_numa();
  }

  void note_numa() {
    std::vector<std::string> without;
    for (const Device& device : cluster_.devices)
      if (!device.numa) without.push_back(std::to_string(device.id));
    if (without.size() == cluster_.devices.size())
      cluster_.notes.emplace_back("the text states no NUMA node of any device");
    else if (!without.empty())
      for (const auto& id : without) cluster_.notes.push_back("the text states no NUMA node of device " + id);
  }

  void order_nics() {
    for (std::size_t c = 0; c < matrix_.columns.size(); ++c)
      if (!matrix_.columns[c].gpu) nics_.push_back(c);
    const bool numbered = std::all_of(
        nics_.begin(), nics_.end(), [&](std::size_t c) { return matrix_.columns[c].nic_number.has_value(); });
    if (numbered)
      std::sort(nics_.begin(), nics_.end(), [&](std::size_t x, std::size_t y) {
        return *matrix_.columns[x].nic_number < *matrix_.columns[y].nic_number;
      });
    std::size_t without_row = 0;
    for (std::size_t column : nics_) {
      const smi::Column& from = matrix_.columns[column];
      Nic nic;
      nic.id = static_cast<int>(cluster_.nics.size());
      nic.name = from.nic_number ? from.nic_name : from.label;
      cluster_.nics.push_back(nic);
      if (!from.row) ++without_row;
    }
    if (without_row > 0)
      cluster_.notes.push_back(
          fmt::format("{} of {} NICs have no row of their own; the device rows state their paths",
                      without_row, nics_.size()));
  }

  /// Every pair of which both rows exist must agree; the diagonal, and only it, is X.
  void check_symmetry() const {
    const std::size_t count = matrix_.columns.size();
    for (const Row& row : matrix_.rows)
      for (std::size_t c = 0; c < count; ++c) {
        const Cell& here = row.cells[c];
        const Where where{file_, row.line, here.token};
        const std::string pair =
            fmt::format("{}-{}", matrix_.columns[row.column].label, matrix_.columns[c].label);
        if (here.self != (c == row.column))
          throw InvalidInput(where, fmt::format("cell {}{}", pair,
                                                here.self ? " is X, which only a label with itself can be"
                                                          : " must be X: rows and columns are out of step"));
        if (here.kind == LinkKind::nvlink && !(matrix_.columns[c].gpu && matrix_.columns[row.column].gpu))
          throw InvalidInput(where, fmt::format("cell {} claims NVLink to a NIC", pair));
        if (!matrix_.columns[c].row) continue;
        const Cell& there = cell(c, row.column);
        if (here.kind != there.kind || here.lanes != there.lanes)
          throw InvalidInput(
              where,
              fmt::format(
                  "cell {} differs from the mirrored cell '{}' in line {}; the matrix must be symmetric",
                  pair, there.token, row_of(c).line));
      }
  }

  void add_links() {
    for (std::size_t a = 0; a < gpus_.size(); ++a)
      for (std::size_t b = a + 1; b < gpus_.size(); ++b) {
        Link link;
        link.a = static_cast<int>(a);
        link.b = static_cast<int>(b);
        link.kind = cell(gpus_[a], gpus_[b]).kind;
        link.lanes = cell(gpus_[a], gpus_[b]).lanes;
        cluster_.links.push_back(link);
      }
  }

  /// The rule of the header: figures of a full clique are direct links only if one device can hold them all.
  /// Behind a switch a pair shows the total of the one with fewer lanes.
  void judge_switch(NvlinkDomain& domain) {
    const std::set<int> members(domain.devices.begin(), domain.devices.end());
    std::map<int, int> totals, sums;
    std::size_t pairs = 0;
    for (const Link& link : cluster_.links) {
      if (link.kind != LinkKind::nvlink || members.count(link.a) == 0) continue;
      for (const int end : {link.a, link.b}) {
        totals[end] = std::max(totals[end], link.lanes);
        sums[end] += link.lanes;
      }
      ++pairs;
    }
    const int size = static_cast<int>(members.size());
    if (size <= 2 || pairs != members.size() * (members.size() - 1) / 2) return;
    const bool by_totals = std::all_of(cluster_.links.begin(), cluster_.links.end(), [&](const Link& link) {
      return link.kind != LinkKind::nvlink || members.count(link.a) == 0 ||
             link.lanes == std::min(totals[link.a], totals[link.b]);
    });
    const auto most = std::max_element(totals.begin(), totals.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto least = std::min_element(totals.begin(), totals.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    const int lanes = std::max_element(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->second;
    const bool alike = most->second == least->second;
    if (!by_totals || (!alike && lanes <= max_lanes_of_a_device)) return;
    const std::string shown = fmt::format(
        "NV{} between every two of {} devices (first: {})",
        alike ? std::to_string(most->second) : fmt::format("{} to {}", least->second, most->second), size,
        domain.devices[0]);
    domain.switched = lanes > max_lanes_of_a_device;
    cluster_.notes.push_back(
        domain.switched
            ? shown +
                  " is more than one device holds as direct links: read as each device's total to an NVSwitch"
            : fmt::format("{} fits one device ({} of at most {} lanes): read as direct links; an NVSwitch "
                          "would print the same",
                          shown, lanes, max_lanes_of_a_device));
  }

  void add_affinity() {
    std::vector<std::vector<LinkKind>> distance;
    for (std::size_t gpu : gpus_) {
      std::vector<LinkKind> row;
      for (std::size_t nic : nics_) row.push_back(cell(gpu, nic).kind);
      distance.push_back(row);
    }
    assign_nearest_nics(cluster_, distance);
  }

  Matrix matrix_;
  std::string file_;
  std::vector<std::size_t> gpus_;  // columns, in the order of their numbers
  std::vector<std::size_t> nics_;
  Cluster cluster_;
};

}  // namespace

Cluster read_nvidia_smi_topo(const std::string& text, const std::string& file) {
  return ClusterBuilder(smi::read_matrix(text, file), file).build();
}

}  // namespace usp::topology
