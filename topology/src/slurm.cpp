// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/slurm.hpp"

#include "host_list.hpp"
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace usp::topology {
namespace {

constexpr std::size_t max_names = std::size_t{1} << 16;  // of nodes, and of switches

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  SlurmTopology read(const std::string& text) {
    check_text_size(text, file_);
    long last = 0;
    for_each_line(text, [&](long number, std::string_view line) { read_line(last = number, line); });
    if (!logical_.empty())
      throw InvalidInput({file_, last, "\\"}, "the last line goes on, but nothing follows");
    if (topology_.switches.empty())
      throw InvalidInput({file_, 0, ""}, "no SwitchName= line: not a Slurm topology.conf");
    check_children();
    check_loops();
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail(long line, const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, line, excerpt(token)}, problem);
  }

  void read_line(long number, std::string_view raw) {
    std::string line = trim(raw.substr(0, raw.find('#')));
    if (logical_.empty()) begin_ = number;
    const bool goes_on = !line.empty() && line.back() == '\\';
    if (goes_on) line = trim(line.substr(0, line.size() - 1));
    const bool inside_list = !logical_.empty() && logical_.back() == ',';
    logical_ += (logical_.empty() || inside_list ? "" : " ") + line;
    if (goes_on) return;
    read_entry(begin_, logical_);
    logical_.clear();
  }

  void read_entry(long line, const std::string& text) {
    if (text.empty()) return;
    SlurmSwitch entry;
    entry.line = line;
    std::set<std::string> seen;
    for (const std::string& token : split_blanks(text)) {
      const std::size_t equals = token.find('=');
      if (equals == std::string::npos) fail(line, token, "expected Keyword=value without blanks");
      const std::string key = lower(token.substr(0, equals));
      const std::string value = token.substr(equals + 1);
      if (!seen.insert(key).second) fail(line, token, "duplicate keyword; remove one");
      if (value.empty()) fail(line, token, "the keyword has no value");
      read_value(entry, key, value);
    }
    if (topology_.switches.size() == max_names)
      fail(line, text, fmt::format("more than {} switches", max_names));
    if (entry.name.empty()) fail(line, text, "the line has no SwitchName=");
    if (entry.nodes.empty() == entry.switches.empty())
      fail(line, entry.name, "a switch must have either Nodes= or Switches=");
    if (!index_.emplace(entry.name, topology_.switches.size()).second)
      fail(line, entry.name, "the switch is defined twice");
    for (const auto& node : entry.nodes) {
      if (!nodes_.insert(node).second) fail(line, node, "the node is below two switches, or twice below one");
      topology_.node_names.push_back(node);
    }
    topology_.switches.push_back(std::move(entry));
  }

  void read_value(SlurmSwitch& entry, const std::string& key, const std::string& value) {
    if (key == "switchname") {
      const HostList list(value, file_, entry.line, max_names);
      if (list.count() != 1) fail(entry.line, value, "SwitchName= defines one switch at a time");
      entry.name = list.names().front();
    } else if (key == "nodes") {
      entry.nodes = expand(entry.line, value, node_names_);
    } else if (key == "switches") {
      entry.switches = expand(entry.line, value, switch_names_);
    } else if (key == "linkspeed") {
      if (!link_speed_noted_)
        topology_.notes.emplace_back("LinkSpeed is ignored: its unit is not defined by Slurm");
      link_speed_noted_ = true;
    } else if (key == "blockname" || key == "blocksizes") {
      fail(entry.line, key, "this is the file of topology/block, not of topology/tree: it names no switches");
    } else {
      fail(entry.line, key, "unknown keyword; known are SwitchName, Nodes, Switches and LinkSpeed");
    }
  }

  /// `used`: names of that kind in the whole file, this list's included afterwards.
  std::vector<std::string> expand(long line, const std::string& value, std::size_t& used) const {
    const HostList list(value, file_, line, max_names);
    if (list.count() > max_names - used)
      fail(line, value, fmt::format("more than {} names in the whole file", max_names));
    used += list.count();
    return list.names();
  }

  void check_children() const {
    std::set<std::string> placed;
    for (const SlurmSwitch& parent : topology_.switches)
      for (const auto& child : parent.switches) {
        if (index_.count(child) == 0)
          fail(parent.line, child, "the switch is not defined by any SwitchName=");
        if (!placed.insert(child).second)
          fail(parent.line, child, "the switch is below two switches, or twice below one");
      }
  }

  /// With one parent each, a loop is the only way for a switch not to be reached from a root.
  void check_loops() const {
    std::set<std::string> children;
    for (const SlurmSwitch& parent : topology_.switches)
      children.insert(parent.switches.begin(), parent.switches.end());
    std::vector<std::string> reached;
    for (const SlurmSwitch& entry : topology_.switches)
      if (children.count(entry.name) == 0) reached.push_back(entry.name);
    for (std::size_t i = 0; i < reached.size(); ++i) {
      const auto& below = topology_.switches[index_.at(reached[i])].switches;
      reached.insert(reached.end(), below.begin(), below.end());
    }
    const std::set<std::string> found(reached.begin(), reached.end());
    for (const SlurmSwitch& entry : topology_.switches)
      if (found.count(entry.name) == 0) fail(entry.line, entry.name, "the switch is below itself");
  }

  std::string file_;
  SlurmTopology topology_;
  std::map<std::string, std::size_t> index_;
  std::set<std::string> nodes_;
  std::size_t node_names_ = 0, switch_names_ = 0;
  std::string logical_;  ///< the entry so far, its continued lines joined
  long begin_ = 0;       ///< its first line
  bool link_speed_noted_ = false;
};

}  // namespace

std::vector<std::string> expand_host_list(const std::string& list, const std::string& file, long line,
                                          std::size_t most) {
  return HostList(list, file, line, most).names();
}

SlurmTopology read_slurm_topology(const std::string& text, const std::string& file) {
  return Reader(file).read(text);
}

Fabric fabric_from(const SlurmTopology& topology) {
  Fabric fabric;
  fabric.kind = FabricKind::fat_tree;
  int next = 0;  // nodes are numbered as they appear, and each appears once
  for (const SlurmSwitch& entry : topology.switches) {
    if (entry.nodes.empty()) continue;
    std::vector<int> leaf;
    for (std::size_t i = 0; i < entry.nodes.size(); ++i) leaf.push_back(next++);
    fabric.leaves.push_back(std::move(leaf));
  }
  return fabric;
}

}  // namespace usp::topology
