// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/slurm.hpp"

#include "host_list.hpp"
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace usp::topology {
namespace {

constexpr std::size_t max_names = std::size_t{1} << 16;  // of nodes, and of switches

/// A few names of a list that may be long.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 8;
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(shown, names.size())));
  return join(first, ", ") + (names.size() > shown ? ", ..." : "");
}

/// First words of lines of Slurm's other tools.
bool names_no_switches(const std::string& key) {
  constexpr std::string_view words[] = {"nodelist",  "partition", "partitionname", "nodename",
                                        "hostnames", "jobid",     "node"};
  return std::find(std::begin(words), std::end(words), key) != std::end(words);
}

/// One line of the file, before its kind is known.
struct Entry {
  SlurmSwitch of;
  std::string nodes_text;
  bool block = false, aggregated = false, level = false, sizes_only = false;
};

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  SlurmTopology read(const std::string& text) {
    CleanText clean = clean_text(text, file_);
    topology_.notes = std::move(clean.notes);
    long last = 0;
    for_each_line(clean.text, [&](long number, std::string_view line) { read_line(last = number, line); });
    if (!logical_.empty())
      throw InvalidInput({file_, last, "\\"}, "the last line goes on, but nothing follows");
    if (topology_.switches.empty() && topology_.blocks.empty())
      throw InvalidInput({file_, 0, ""}, "no SwitchName= or BlockName= line: not a Slurm topology.conf");
    check_children();
    check_loops();
    if (topology_.roots.size() > 1)
      topology_.notes.push_back(
          fmt::format("{} switches have none above them ({}): Slurm starts no job across them",
                      topology_.roots.size(), some_of(topology_.roots)));
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
    Entry entry;
    entry.of.line = line;
    std::set<std::string> seen;
    for (const std::string& token : split_blanks(text)) {
      const std::size_t equals = token.find('=');
      const std::string key = lower(token.substr(0, equals));
      if (names_no_switches(key))
        fail(line, token,
             "this is what sinfo, squeue or scontrol show node print, which names no switches; give "
             "topology.conf, "
             "or what scontrol show topology prints");
      if (equals == std::string::npos) fail(line, token, "expected Keyword=value without blanks");
      const std::string value = token.substr(equals + 1);
      if (!seen.insert(key).second) fail(line, token, "duplicate keyword; remove one");
      // scontrol prints keywords without values.
      if (value.empty() && (key == "nodes" || key == "switches") &&
          lower(text).find("level=") != std::string::npos)
        continue;
      if (value.empty()) fail(line, token, "the keyword has no value");
      read_value(entry, key, value);
    }
    if (entry.sizes_only) return;
    if (entry.block) return add_block(text, entry);
    add_switch(text, entry);
  }

  void add_block(const std::string& text, Entry& entry) {
    const long line = entry.of.line;
    if (!topology_.switches.empty()) fail(line, entry.of.name, "a block in a file of switches");
    if (!entry.of.switches.empty()) fail(line, entry.of.name, "a block holds Nodes=, no Switches=");
    if (topology_.blocks.size() == max_names) fail(line, text, fmt::format("more than {} blocks", max_names));
    if (entry.aggregated) return;
    if (entry.nodes_text.empty()) fail(line, text, "a block must have Nodes=");
    SlurmBlock block{entry.of.name, expand(line, entry.nodes_text, node_names_), line};
    for (const SlurmBlock& other : topology_.blocks)
      if (other.name == block.name) fail(line, block.name, "the block is defined twice");
    take_nodes(line, block.nodes);
    topology_.blocks.push_back(std::move(block));
  }

  void take_nodes(long line, const std::vector<std::string>& nodes) {
    for (const auto& node : nodes) {
      if (!nodes_.insert(node).second) fail(line, node, "the node is below two switches, or twice below one");
      topology_.node_names.push_back(node);
    }
  }

  void add_switch(const std::string& text, Entry& of) {
    SlurmSwitch& entry = of.of;
    const long line = entry.line;
    if (!topology_.blocks.empty()) fail(line, entry.name, "a switch in a file of blocks");
    // What scontrol prints of a switch above others repeats the hosts below it.
    const bool repeated = of.level && !entry.switches.empty();
    if (!of.nodes_text.empty() && !repeated) entry.nodes = expand(line, of.nodes_text, node_names_);
    if (topology_.switches.size() == max_names)
      fail(line, text, fmt::format("more than {} switches", max_names));
    if (entry.name.empty()) fail(line, text, "the line has no SwitchName=");
    if (entry.nodes.empty() == entry.switches.empty())
      fail(line, entry.name, "a switch must have either Nodes= or Switches=");
    if (!index_.emplace(entry.name, topology_.switches.size()).second)
      fail(line, entry.name, "the switch is defined twice");
    take_nodes(line, entry.nodes);
    topology_.switches.push_back(std::move(entry));
  }

  std::string one_name(long line, const char* key, const std::string& value) const {
    const HostList list(value, file_, line, max_names);
    if (list.count() != 1) fail(line, value, fmt::format("{}= defines one at a time", key));
    return list.names().front();
  }

  void read_value(Entry& of, const std::string& key, const std::string& value) {
    SlurmSwitch& entry = of.of;
    if (key == "switchname") {
      entry.name = one_name(entry.line, "SwitchName", value);
    } else if (key == "blockname" || key == "aggregatedblock") {
      of.block = true;
      of.aggregated = key == "aggregatedblock";
      if (!of.aggregated) entry.name = one_name(entry.line, "BlockName", value);
    } else if (key == "nodes") {
      of.nodes_text = value;
    } else if (key == "switches") {
      entry.switches = expand(entry.line, value, switch_names_);
    } else if (key == "level" || key == "blockindex" || key == "blocksize") {
      if (!small_number(value, 6)) fail(entry.line, value, fmt::format("{} must be a whole number", key));
      of.level = of.level || key == "level";
    } else if (key == "blocksizes") {
      if (value.find_first_not_of("0123456789,") != std::string::npos)
        fail(entry.line, value, "BlockSizes must be whole numbers");
      of.sizes_only = entry.name.empty() && !of.block;
      topology_.notes.push_back(
          fmt::format("BlockSizes={} is ignored: blocks are taken as they are listed", value));
    } else if (key == "linkspeed") {
      if (!link_speed_noted_)
        topology_.notes.emplace_back("LinkSpeed is ignored: its unit is not defined by Slurm");
      link_speed_noted_ = true;
    } else {
      fail(entry.line, key,
           "unknown keyword; known are SwitchName, Nodes, Switches, LinkSpeed, BlockName, BlockSizes, and "
           "Level of "
           "scontrol show topology");
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
  void check_loops() {
    std::set<std::string> children;
    for (const SlurmSwitch& parent : topology_.switches)
      children.insert(parent.switches.begin(), parent.switches.end());
    std::vector<std::string> reached;
    for (const SlurmSwitch& entry : topology_.switches)
      if (children.count(entry.name) == 0) reached.push_back(entry.name);
    topology_.roots = reached;
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

SlurmTopology below_one_root(const SlurmTopology& topology, std::size_t hosts, const std::string& file) {
  if (topology.roots.size() < 2) return topology;
  std::map<std::string, const SlurmSwitch*> by_name;
  for (const SlurmSwitch& entry : topology.switches) by_name[entry.name] = &entry;
  SlurmTopology largest;
  for (const std::string& root : topology.roots) {
    std::set<std::string> inside{root};
    std::vector<std::string> open{root};
    for (std::size_t i = 0; i < open.size(); ++i)
      for (const std::string& child : by_name.at(open[i])->switches)
        if (inside.insert(child).second) open.push_back(child);
    SlurmTopology part;
    for (const SlurmSwitch& entry : topology.switches)
      if (inside.count(entry.name) != 0) {
        part.switches.push_back(entry);
        part.node_names.insert(part.node_names.end(), entry.nodes.begin(), entry.nodes.end());
      }
    part.roots = {root};
    if (part.node_names.size() > largest.node_names.size()) largest = part;
    if (hosts == 0 || part.node_names.size() < hosts) continue;
    largest = std::move(part);
    break;
  }
  if (largest.node_names.size() < hosts)
    throw InvalidInput(
        {file, 0, largest.roots.front()},
        fmt::format("has {} below it, the most of {} that nothing joins, and the cluster has {}; lower "
                    "--nodes, or name the switch above them (SwitchName=top Switches={})",
                    counted(largest.node_names.size(), "host"), counted(topology.roots.size(), "switch"),
                    hosts, some_of(topology.roots)));
  largest.notes = topology.notes;
  largest.notes.push_back(fmt::format("the cluster is what is below {}: {} of {}", largest.roots.front(),
                                      largest.node_names.size(),
                                      counted(topology.node_names.size(), "host")));
  return largest;
}

Fabric fabric_from(const SlurmTopology& topology) {
  Fabric fabric;
  fabric.kind = FabricKind::fat_tree;
  int first = 0;
  for (const SlurmBlock& block : topology.blocks) {
    std::vector<int> leaf(block.nodes.size());
    std::iota(leaf.begin(), leaf.end(), first);
    first += static_cast<int>(leaf.size());
    fabric.leaves.push_back(std::move(leaf));
  }
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
