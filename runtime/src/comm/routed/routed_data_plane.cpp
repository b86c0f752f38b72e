// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/routed_data_plane.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace usp::comm {
namespace {

/// Channels of one data plane, and what of a start() goes there.
struct Way {
  std::unique_ptr<Channels> channels;
  std::vector<ChannelStart> starts;
};

class RoutedChannels final : public Channels {
 public:
  struct Place {
    std::size_t way = 0;
    std::int32_t channel = 0;
  };
  RoutedChannels(std::vector<Way> ways, std::vector<Place> places)
      : ways_(std::move(ways)), places_(std::move(places)) {
    for (Way& way : ways_) way.starts.reserve(places_.size());
  }

  void begin() override {
    for (Way& way : ways_) {
      way.starts.clear();
      way.channels->begin();
    }
  }
  void start(const ChannelStart* starts, i64 count) override {
    for (i64 i = 0; i < count; ++i) {
      const Place& place = places_[static_cast<std::size_t>(starts[i].channel)];
      ChannelStart& start = ways_[place.way].starts.emplace_back(starts[i]);
      start.channel = place.channel;
    }
    for (Way& way : ways_) {
      if (!way.starts.empty()) way.channels->start(way.starts.data(), static_cast<i64>(way.starts.size()));
      way.starts.clear();
    }
  }
  [[nodiscard]] std::optional<ReceiveGate> gate(std::int32_t channel) override {
    const Place& place = places_[static_cast<std::size_t>(channel)];
    return ways_[place.way].channels->gate(place.channel);
  }
  [[nodiscard]] std::optional<kernels::Completion> completion(std::int32_t channel) override {
    const Place& place = places_[static_cast<std::size_t>(channel)];
    return ways_[place.way].channels->completion(place.channel);
  }
  i64 wait(std::int32_t channel) override {
    const Place& place = places_[static_cast<std::size_t>(channel)];
    return ways_[place.way].channels->wait(place.channel);
  }
  void progress() override {
    for (Way& way : ways_) way.channels->progress();
  }

 private:
  std::vector<Way> ways_;
  std::vector<Place> places_;  ///< per channel
};

class RoutedDataPlane final : public DataPlane {
 public:
  RoutedDataPlane(Communicator& control, std::vector<DataPlane*> planes, std::vector<Route> routes)
      : control_(control), routes_(std::move(routes)), vias_(std::move(planes)) {
    if (static_cast<int>(routes_.size()) != control.size())
      throw UsageError(fmt::format("{} routes for {} ranks", routes_.size(), control.size()));
    for (const Route& route : routes_)
      if (route.via != nullptr && std::find(vias_.begin(), vias_.end(), route.via) == vias_.end())
        throw UsageError("a route goes through a data plane that is not among the given ones");
    name_ = "routed";
    for (const DataPlane* via : vias_)
      name_ += (via == vias_.front() ? " (" : " + ") + std::string(via->name());
    if (!vias_.empty()) name_ += ")";
  }

  [[nodiscard]] const char* name() const override { return name_.c_str(); }
  [[nodiscard]] Communicator& control() override { return control_; }
  [[nodiscard]] std::unique_ptr<Channels> connect(const std::vector<ChannelEnd>& ends) override {
    std::vector<std::vector<ChannelEnd>> parts(vias_.size());
    std::vector<RoutedChannels::Place> places;
    for (const ChannelEnd& end : ends) {
      const std::size_t way = way_of(end);
      ChannelEnd& part = parts[way].emplace_back(end);
      part.peer = routes_[static_cast<std::size_t>(end.peer)].peer;
      places.push_back({way, static_cast<std::int32_t>(parts[way].size() - 1)});
    }
    std::vector<Way> ways(vias_.size());
    for (std::size_t i = 0; i < vias_.size(); ++i) ways[i].channels = vias_[i]->connect(parts[i]);
    return std::make_unique<RoutedChannels>(std::move(ways), std::move(places));
  }
  [[nodiscard]] kernels::Arena* peer_arena(kernels::Memory& memory) override {
    for (DataPlane* via : vias_)
      if (kernels::Arena* const arena = via->peer_arena(memory)) return arena;
    return nullptr;
  }
  [[nodiscard]] i64 held_bytes() const override {
    i64 sum = 0;
    for (const DataPlane* via : vias_) sum += via->held_bytes();
    return sum;
  }
  [[nodiscard]] schedule::PeerReach reach() const override {
    for (const DataPlane* via : vias_)
      if (via->reach() == schedule::PeerReach::workspace) return schedule::PeerReach::workspace;
    return schedule::PeerReach::all;
  }
  [[nodiscard]] std::string capture_obstacle() const override {
    for (const DataPlane* via : vias_)
      if (std::string why = via->capture_obstacle(); !why.empty()) return why;
    return "";
  }
  void check() override {
    control_.progress();
    for (DataPlane* via : vias_) via->check();
  }
  [[nodiscard]] std::vector<std::string> notes() const override {
    std::vector<std::string> all;
    for (const DataPlane* via : vias_)
      for (std::string& text : via->notes()) all.push_back(std::move(text));
    return all;
  }

 private:
  [[nodiscard]] std::size_t way_of(const ChannelEnd& end) const {
    const int peer = end.peer, ranks = static_cast<int>(routes_.size());
    const DataPlane* const via =
        peer >= 0 && peer < ranks ? routes_[static_cast<std::size_t>(peer)].via : nullptr;
    if (via == nullptr)
      throw UsageError(
          fmt::format("no transport connects rank {} to rank {} for '{}': they share no axis of the mesh; "
                      "use one transport for all ranks",
                      control_.rank(), peer, end.operation));
    return static_cast<std::size_t>(std::find(vias_.begin(), vias_.end(), via) - vias_.begin());
  }

  Communicator& control_;
  std::vector<Route> routes_;
  std::vector<DataPlane*> vias_;
  std::string name_;
};

}  // namespace

std::unique_ptr<DataPlane> make_routed_data_plane(Communicator& control, std::vector<DataPlane*> planes,
                                                  std::vector<Route> routes) {
  return std::make_unique<RoutedDataPlane>(control, std::move(planes), std::move(routes));
}

}  // namespace usp::comm
