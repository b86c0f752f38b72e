// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/synthetic.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

namespace usp::topology {
namespace {

constexpr int max_devices = 1 << 16;
constexpr std::size_t max_description_bytes = std::size_t{1} << 16;

/// One token of the line: `word`, `word:count`, `word:count(argument)` or `word:name(argument)`.
struct Token {
  std::string text;
  std::size_t column = 1;
  std::string word;
  std::string value;     // behind the colon
  std::string argument;  // inside the parentheses
};

/// What the line says, before it is laid out.
struct Description {
  int nodes = 1;
  int gpus = 0;
  int nics = 0;
  int numas = 0;
  int lanes = -1;
  int pair_lanes = 0;
  int group = 0;  // devices per NVLink domain
  enum class Wiring { pcie, switched, direct, cubemesh, xgmi } wiring = Wiring::pcie;
  std::string card;
  Quantity nic_gb_s;
  std::string fabric;
};

class Parser {
 public:
  Parser(const std::string& text, std::string file) : file_(std::move(file)) {
    if (text.size() > max_description_bytes)
      throw InvalidInput({file_, 1, ""},
                         "a description of more than 64 KiB; it is one line of a dozen words");
    std::size_t i = 0;
    while (i < text.size()) {
      if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
        ++i;
        continue;
      }
      std::size_t end = i;
      while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) == 0) ++end;
      tokens_.push_back(split_token(text.substr(i, end - i), i + 1));
      i = end;
    }
  }

  Description run() {
    for (const Token& token : tokens_) {
      if (!seen_.insert(token.word).second) fail(token, "duplicate word; remove one");
      if (!take_count(token) && !take_wiring(token)) {
        const std::string near = nearest_name(token.word, words());
        fail(token, near.empty() ? "is not a word of the synthetic form; it knows " + join(words(), ", ")
                                 : fmt::format("is not known; did you mean '{}'?", near));
      }
    }
    if (result_.gpus == 0)
      throw InvalidInput({file_, 1, "gpu"}, "the description needs gpu:N, the devices of each host");
    check();
    return result_;
  }

 private:
  static std::vector<std::string> words() {
    return {"node",  "gpu",      "nic",  "numa", "nvswitch", "nvlink",
            "pairs", "cubemesh", "xgmi", "pcie", "fabric",   "lanes"};
  }

  [[noreturn]] void fail(const Token& token, const std::string& problem) const {
    throw InvalidInput({file_, 1, token.text}, fmt::format("column {}: {}", token.column, problem));
  }

  [[nodiscard]] Token split_token(const std::string& text, std::size_t column) const {
    Token token{text, column, text, "", ""};
    const std::size_t open = text.find('(');
    if (open != std::string::npos) {
      if (text.back() != ')' || text.find('(', open + 1) != std::string::npos || open + 2 >= text.size())
        fail(token, "needs one closed, filled pair of parentheses at its end");
      token.argument = text.substr(open + 1, text.size() - open - 2);
    }
    const std::string head = text.substr(0, open);
    const std::size_t colon = head.find(':');
    token.word = head.substr(0, colon);
    if (colon != std::string::npos) {
      token.value = head.substr(colon + 1);
      if (token.value.empty()) fail(token, "needs a value behind the colon");
    } else if (open != std::string::npos) {
      fail(token, "needs ':' and a value before the parentheses");
    }
    return token;
  }

  [[nodiscard]] int number(const Token& token, const std::string& text, int most) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most)
      fail(token, fmt::format("'{}' is not a whole number from 1 to {}", text, most));
    return value;
  }
  [[nodiscard]] int count(const Token& token, int most) const { return number(token, token.value, most); }

  void no_argument(const Token& token) const {
    if (!token.argument.empty()) fail(token, "takes nothing in parentheses");
  }

  bool take_count(const Token& token) {
    if (token.word == "gpu") {
      result_.gpus = count(token, 1024);
      if (!token.argument.empty()) {
        try {
          result_.card = find_device(token.argument, "gpu").spec.name;
        } catch (const UsageError& error) {
          fail(token, error.what());
        }
      }
    } else if (token.word == "nic") {
      result_.nics = count(token, 1024);
      if (!token.argument.empty()) take_rate(token);
    } else if (token.word == "fabric") {
      if (token.value.empty()) fail(token, "needs a kind: fabric:rail, fabric:fat_tree(2)");
      result_.fabric = token.text.substr(std::string("fabric:").size());
      Fabric trial;
      try {
        set_fabric(trial, result_.fabric, 1, "fabric");
      } catch (const UsageError& error) {
        fail(token, error.what());
      }
    } else if (token.word == "node" || token.word == "numa" || token.word == "lanes") {
      no_argument(token);
      if (token.word == "node") result_.nodes = count(token, max_devices);
      if (token.word == "numa") result_.numas = count(token, 64);
      if (token.word == "lanes") result_.lanes = count(token, 64);
    } else {
      return false;
    }
    return true;
  }

  void take_rate(const Token& token) {
    try {
      result_.nic_gb_s = {parse_line_rate_gb_s(token.argument, "nic"), Provenance::preset,
                          "synthetic description: " + token.text};
    } catch (const UsageError& error) {
      fail(token, error.what());
    }
  }

  bool take_wiring(const Token& token) {
    using Wiring = Description::Wiring;
    const std::vector<std::string> names = {"pcie", "nvswitch", "nvlink", "pairs", "cubemesh", "xgmi"};
    if (std::find(names.begin(), names.end(), token.word) == names.end()) return false;
    if (!wiring_.empty())
      fail(token, fmt::format("contradicts '{}'; a host has one kind of wiring", wiring_));
    wiring_ = token.text;
    if (token.word != "nvlink") no_argument(token);
    if (token.word != "nvlink" && token.word != "nvswitch" && !token.value.empty())
      fail(token, "takes no value");
    if (token.word == "nvswitch") {
      result_.wiring = Wiring::switched;
      if (!token.value.empty()) result_.group = count(token, max_devices);
    } else if (token.word == "nvlink" || token.word == "pairs") {
      result_.wiring = Wiring::direct;
      result_.group = token.word == "pairs" ? 2 : count(token, 64);
      if (!token.argument.empty()) result_.pair_lanes = number(token, token.argument, 64);
    } else if (token.word == "cubemesh") {
      result_.wiring = Wiring::cubemesh;
    } else if (token.word == "xgmi") {
      result_.wiring = Wiring::xgmi;
    }
    wiring_token_ = token;
    return true;
  }

  void check() {
    const std::int64_t total = std::int64_t{result_.nodes} * result_.gpus;
    using Wiring = Description::Wiring;
    if (result_.wiring == Wiring::cubemesh && result_.gpus != 8)
      fail(wiring_token_, fmt::format("joins eight devices; the description has {}", result_.gpus));
    if (result_.group == 0) result_.group = result_.gpus;
    const bool spans = result_.wiring == Wiring::switched && result_.group > result_.gpus;
    if (result_.wiring != Wiring::pcie &&
        (spans ? total % result_.group != 0 || result_.group % result_.gpus != 0
               : result_.gpus % result_.group != 0))
      fail(wiring_token_, fmt::format("groups of {} do not divide {}", result_.group,
                                      counted(spans ? total : result_.gpus, "device")));
    const auto pairs = [](std::int64_t devices) { return devices * (devices - 1) / 2; };
    const bool by_host = result_.numas > 0 && !spans;  // then every pair of a host has its path
    const std::int64_t groups = total / result_.group * pairs(result_.group);
    const std::string fault = oversize({result_.nodes, total, std::int64_t{result_.nodes} * result_.nics,
                                        by_host                          ? result_.nodes * pairs(result_.gpus)
                                        : result_.wiring == Wiring::pcie ? 0
                                                                         : groups});
    if (!fault.empty()) throw InvalidInput({file_, 1, "node"}, fault);
  }

  std::string file_;
  std::vector<Token> tokens_;
  std::set<std::string> seen_;
  Description result_;
  std::string wiring_;
  Token wiring_token_;
};

/// NVLinks between the devices of a DGX-1V, as its `nvidia-smi topo -m` prints them (six per device).
constexpr std::array<std::array<int, 8>, 8> cube_mesh_lanes = {{{0, 1, 2, 1, 0, 0, 0, 2},
                                                                {1, 0, 1, 2, 0, 0, 2, 0},
                                                                {2, 1, 0, 2, 0, 1, 0, 0},
                                                                {1, 2, 2, 0, 1, 0, 0, 0},
                                                                {0, 0, 0, 1, 0, 2, 2, 1},
                                                                {0, 0, 1, 0, 2, 0, 1, 2},
                                                                {0, 2, 0, 0, 2, 1, 0, 1},
                                                                {2, 0, 0, 0, 1, 2, 1, 0}}};

class Layout {
 public:
  Layout(const Description& described, const DevicePreset* card) : described_(described), card_(card) {}

  Cluster run() {
    cluster_.specs.emplace_back();
    for (int n = 0; n < described_.nodes; ++n) {
      Node node;
      node.id = n;
      node.numa_count = described_.numas;
      cluster_.nodes.push_back(node);
      for (int g = 0; g < described_.gpus; ++g) add_device(n, g);
    }
    if (described_.wiring != Description::Wiring::pcie) add_domains();
    add_links();
    if (described_.nics > 0) deal_nics(cluster_, described_.nics, described_.nic_gb_s);
    return std::move(cluster_);
  }

 private:
  using Wiring = Description::Wiring;

  void add_device(int node, int local) {
    Device device;
    device.id = static_cast<int>(cluster_.devices.size());
    device.node = node;
    device.local = local;
    if (described_.numas > 0) device.numa = local * described_.numas / described_.gpus;
    cluster_.devices.push_back(device);
    cluster_.spec_of_device.push_back(0);
  }

  void add_domains() {
    const int total = static_cast<int>(cluster_.devices.size());
    for (int first = 0; described_.group > 1 && first < total; first += described_.group) {
      NvlinkDomain domain;
      domain.switched = described_.wiring == Wiring::switched;
      for (int i = first; i < first + described_.group; ++i) {
        cluster_.devices[static_cast<std::size_t>(i)].nvlink_domain =
            static_cast<int>(cluster_.domains.size());
        domain.devices.push_back(i);
      }
      cluster_.domains.push_back(std::move(domain));
    }
  }

  /// NVLinks between two devices of one domain; 0: unknown until a card is named.
  [[nodiscard]] int lanes_between(const Device& a, const Device& b) const {
    const int lanes = described_.lanes > 0 ? described_.lanes : card_ != nullptr ? card_->lanes : 0;
    if (described_.wiring == Wiring::switched) return lanes;
    if (described_.wiring == Wiring::cubemesh)
      return cube_mesh_lanes[static_cast<std::size_t>(a.local)][static_cast<std::size_t>(b.local)];
    if (described_.pair_lanes > 0) return described_.pair_lanes;
    return lanes / std::max(1, described_.group - 1);
  }

  void add_links() {
    for (const Device& a : cluster_.devices)
      for (int j = a.id + 1; j < static_cast<int>(cluster_.devices.size()); ++j) {
        const Device& b = cluster_.devices[static_cast<std::size_t>(j)];
        const bool together = a.nvlink_domain >= 0 && a.nvlink_domain == b.nvlink_domain;
        if (!together && a.node != b.node) break;  // domains and hosts are runs of consecutive devices
        Link link;
        link.a = a.id;
        link.b = b.id;
        if (together && (described_.wiring != Wiring::cubemesh || lanes_between(a, b) > 0)) {
          link.kind = described_.wiring == Wiring::xgmi ? LinkKind::xgmi : LinkKind::nvlink;
          link.lanes = lanes_between(a, b);
        } else if (a.numa && b.numa) {
          link.kind = *a.numa == *b.numa ? LinkKind::node : LinkKind::sys;
        } else {
          continue;
        }
        cluster_.links.push_back(link);
      }
  }

  const Description& described_;
  const DevicePreset* card_;
  Cluster cluster_;
};

}  // namespace

Cluster read_synthetic(const std::string& text, const std::string& file) {
  const Description described = Parser(text, file).run();
  const DevicePreset* card = described.card.empty() ? nullptr : &find_device(described.card, "gpu");
  if (card != nullptr && described.wiring != Description::Wiring::pcie && card->lanes == 0)
    throw InvalidInput({file, 1, described.card}, "has no NVLink; describe the host as pcie");
  Cluster cluster = Layout(described, card).run();
  cluster.name = trim(text);
  if (described.fabric.empty()) {
    cluster.fabric.kind = described.nodes == 1 ? FabricKind::none : FabricKind::unknown;
  } else {
    set_fabric(cluster.fabric, described.fabric, described.nodes, "fabric");
  }
  if (card != nullptr) name_device(cluster, *card, file);
  validate(cluster, file);
  return cluster;
}

void set_fabric(Fabric& fabric, const std::string& text, int nodes, const std::string& flag) {
  const std::string wanted = fmt::format(
      "{}: '{}' is not none, rail, fat_tree, fat_tree(RATIO) or fat_tree(RATIO,HOSTS_PER_LEAF)", flag, text);
  fabric.leaves.clear();
  fabric.oversubscription = {};
  if (text == "none" || text == "rail") {
    fabric.kind = text == "rail" ? FabricKind::rail : FabricKind::none;
    return;
  }
  fabric.kind = FabricKind::fat_tree;
  if (text == "fat_tree") return;
  if (text.rfind("fat_tree(", 0) != 0 || text.back() != ')') throw UsageError(wanted);
  const std::vector<std::string> parts = split(text.substr(9, text.size() - 10), ',');
  if (parts.size() > 2) throw UsageError(wanted);
  const double ratio = parse_number(parts[0], flag);
  if (!(ratio >= 1 && ratio <= max_oversubscription))
    throw UsageError(fmt::format("{}; the ratio is 1 to {:g}", wanted, max_oversubscription));
  fabric.oversubscription = {ratio, Provenance::preset, fmt::format("{} {}", flag, text)};
  if (parts.size() == 1) return;
  const std::int64_t hosts = parse_integer(parts[1], flag);
  if (hosts < 1) throw UsageError(wanted);
  for (int node = 0; node < nodes; ++node) {
    if (node % hosts == 0) fabric.leaves.emplace_back();
    fabric.leaves.back().push_back(node);
  }
}

void deal_nics(Cluster& cluster, int count, const Quantity& gb_s) {
  std::vector<std::vector<int>> devices(cluster.nodes.size());
  for (Device& device : cluster.devices) {
    device.nics.clear();
    devices[static_cast<std::size_t>(device.node)].push_back(device.id);
  }
  cluster.nics.clear();
  for (const Node& node : cluster.nodes) {
    const std::vector<int>& here = devices[static_cast<std::size_t>(node.id)];
    const int size = static_cast<int>(here.size());
    for (int k = 0; k < count; ++k) {
      Nic nic;
      nic.id = static_cast<int>(cluster.nics.size());
      nic.node = node.id;
      nic.gb_s = gb_s;
      // The devices that this NIC serves: one where NICs are many, a block of them where devices are many.
      const int first = static_cast<int>(std::int64_t{k} * size / count);
      const int last = std::max(first + 1, static_cast<int>(std::int64_t{k + 1} * size / count));
      for (int d = first; d < std::min(last, size); ++d) {
        Device& device = cluster.devices[static_cast<std::size_t>(here[static_cast<std::size_t>(d)])];
        if (!nic.numa) nic.numa = device.numa;
        device.nics.push_back(nic.id);
      }
      cluster.nics.push_back(nic);
    }
  }
}

}  // namespace usp::topology
