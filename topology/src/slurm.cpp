// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/slurm.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace usp {
namespace {

constexpr std::size_t most_names = 1000000;

/// One bracket list or one literal of a host expression.
using Choices = std::vector<std::string>;

class HostList {
 public:
  HostList(const std::string& list, const std::string& file, long line, std::size_t most)
      : list_(list), file_(file), line_(line), most_(most) {}

  std::vector<std::string> expand() {
    std::vector<std::string> names;
    while (true) {
      const std::vector<Choices> parts = read_expression();
      append_product(parts, names);
      if (at_ == list_.size()) return names;
      ++at_;  // the comma
    }
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw InvalidInput({file_, line_, excerpt(list_)}, "host list: " + problem);
  }

  static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  }

  std::vector<Choices> read_expression() {
    std::vector<Choices> parts;
    while (at_ < list_.size() && list_[at_] != ',') {
      if (list_[at_] == '[') {
        parts.push_back(read_bracket());
        continue;
      }
      const std::size_t begin = at_;
      while (at_ < list_.size() && is_name_byte(list_[at_])) ++at_;
      if (at_ == begin) fail("unexpected '" + excerpt(list_.substr(at_, 1)) + "'");
      parts.push_back({list_.substr(begin, at_ - begin)});
    }
    if (parts.empty()) fail("an empty name between commas or at an end");
    return parts;
  }

  Choices read_bracket() {
    Choices choices;
    const std::size_t end = list_.find(']', ++at_);
    if (end == std::string::npos) fail("'[' without ']'");
    for (const auto& range : split(std::string_view(list_).substr(at_, end - at_), ',')) {
      const std::size_t dash = range.find('-');
      const std::string low = range.substr(0, dash);
      const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
      const auto first = small_number(low, 9);
      const auto last = small_number(high, 9);
      if (!first || !last || *first > *last) fail("'" + excerpt(range) + "' is no number or rising range");
      if (static_cast<std::size_t>(*last - *first) >= most_ - std::min(most_, choices.size())) too_many();
      for (int i = *first; i <= *last; ++i) {
        const std::string digits = std::to_string(i);
        choices.push_back(std::string(low.size() > digits.size() ? low.size() - digits.size() : 0, '0') +
                          digits);
      }
    }
    at_ = end + 1;
    return choices;
  }

  [[noreturn]] void too_many() const { fail("more than " + std::to_string(most_) + " names"); }

  void append_product(const std::vector<Choices>& parts, std::vector<std::string>& names) const {
    std::size_t count = 1;
    for (const Choices& choices : parts) {
      if (choices.size() > most_ / count) too_many();
      count *= choices.size();
    }
    if (names.size() + count > most_) too_many();
    for (std::size_t i = 0; i < count; ++i) {
      std::string name;
      std::size_t block = count;
      for (const Choices& choices : parts) {
        block /= choices.size();
        name += choices[i / block % choices.size()];
      }
      names.push_back(std::move(name));
    }
  }

  const std::string& list_;
  const std::string& file_;
  long line_;
  std::size_t most_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  SlurmTopology read(const std::string& text) {
    long number = 0;
    std::string logical;
    long begin = 0;
    for (const std::string& raw : split_lines(text)) {
      ++number;
      std::string line = trim(raw.substr(0, raw.find('#')));
      if (logical.empty()) begin = number;
      const bool goes_on = !line.empty() && line.back() == '\\';
      if (goes_on) line = trim(line.substr(0, line.size() - 1));
      const bool inside_list = !logical.empty() && logical.back() == ',';
      logical += (logical.empty() || inside_list ? "" : " ") + line;
      if (goes_on) continue;
      read_entry(begin, logical);
      logical.clear();
    }
    if (!logical.empty())
      throw InvalidInput({file_, number, "\\"}, "the last line goes on, but nothing follows");
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
      if (!seen.insert(key).second) fail(line, token, "the keyword stands twice in one line");
      if (value.empty()) fail(line, token, "the keyword has no value");
      read_value(entry, key, value);
    }
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
    const auto expand = [&] {
      auto names = expand_host_list(value, file_, entry.line, most_names - names_);
      names_ += names.size();
      return names;
    };
    if (key == "switchname") {
      const auto names = expand();
      if (names.size() != 1) fail(entry.line, value, "SwitchName= defines one switch at a time");
      entry.name = names[0];
    } else if (key == "nodes") {
      entry.nodes = expand();
    } else if (key == "switches") {
      entry.switches = expand();
    } else if (key == "linkspeed") {
      if (!link_speed_noted_)
        topology_.notes.push_back("LinkSpeed is ignored: its unit is not defined by Slurm");
      link_speed_noted_ = true;
    } else if (key == "blockname" || key == "blocksizes") {
      fail(entry.line, key, "this is the file of topology/block, not of topology/tree: it names no switches");
    } else {
      fail(entry.line, key, "unknown keyword; known are SwitchName, Nodes, Switches and LinkSpeed");
    }
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
  std::size_t names_ = 0;
  bool link_speed_noted_ = false;
};

}  // namespace

std::vector<std::string> expand_host_list(const std::string& list, const std::string& file, long line,
                                          std::size_t most) {
  return HostList(list, file, line, most).expand();
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

}  // namespace usp
