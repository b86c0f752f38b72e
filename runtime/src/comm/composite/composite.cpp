// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/composite.hpp"

#include "../group/data_plane.hpp"
#include "../group/ticket_table.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace usp::comm {
namespace {

class CompositeCommunicator final : public comm::DataPlaneCommunicator {
 public:
  template <class Control>
  CompositeCommunicator(Control&& control, std::vector<Route> routes)
      : DataPlaneCommunicator(std::forward<Control>(control)), routes_(std::move(routes)) {
    if (static_cast<int>(routes_.size()) != size())
      throw UsageError(fmt::format("{} routes for {} ranks", routes_.size(), size()));
    for (const Route& route : routes_)
      if (route.via != nullptr && std::find(vias_.begin(), vias_.end(), route.via) == vias_.end())
        vias_.push_back(route.via);
    name_ = "routed";
    for (const Communicator* via : vias_)
      name_ += (via == vias_.front() ? " (" : " + ") + std::string(via->name());
    if (!vias_.empty()) name_ += ")";
  }

  [[nodiscard]] const char* name() const override { return name_.c_str(); }

  void post(const Message* messages, i64 count, Ticket* tickets) override {
    for (i64 i = 0; i < count; ++i) {
      check_peer(messages[i]);
      if (routes_[static_cast<std::size_t>(messages[i].peer)].via == nullptr)
        throw UsageError(
            fmt::format("there is no way from rank {} to rank {} for '{}': they share no axis of the mesh; "
                        "use one transport for all ranks",
                        rank(), messages[i].peer, messages[i].operation));
      tickets[i] = open(messages[i]);
    }
    // Each way gets its messages in one call, in the order given.
    for (Communicator* via : vias_) {
      part_.clear(), part_of_.clear();
      for (i64 i = 0; i < count; ++i) {
        const Route& route = routes_[static_cast<std::size_t>(messages[i].peer)];
        if (route.via != via) continue;
        part_.push_back(messages[i]);
        part_.back().peer = route.peer;
        part_of_.push_back(tickets[i]);
      }
      if (part_.empty()) continue;
      inner_.resize(part_.size());
      via->post(part_.data(), static_cast<i64>(part_.size()), inner_.data());
      for (std::size_t i = 0; i < part_.size(); ++i) flights_[part_of_[i]].inner = inner_[i];
    }
  }
  void wait(Ticket ticket) override {
    Flight& flight = flights_.of(ticket);
    via_of(flight).wait(flight.inner);
    finish(flight, ticket);
  }
  [[nodiscard]] bool test(Ticket ticket) override {
    Flight& flight = flights_.of(ticket);
    if (!via_of(flight).test(flight.inner)) return false;
    finish(flight, ticket);
    return true;
  }
  [[nodiscard]] std::vector<std::string> notes() const override {
    std::vector<std::string> all;
    for (const Communicator* via : vias_)
      for (std::string& text : via->notes()) all.push_back(std::move(text));
    return all;
  }
  [[nodiscard]] bool capturable() const override {
    return std::all_of(vias_.begin(), vias_.end(), [](const Communicator* via) { return via->capturable(); });
  }
  [[nodiscard]] kernels::Arena* peer_arena() override {
    for (Communicator* via : vias_)
      if (kernels::Arena* const arena = via->peer_arena()) return arena;
    return nullptr;
  }
  void progress() override {
    control().progress();
    for (Communicator* via : vias_) via->progress();
  }
  void reserve(i64 messages, i64 regions) override {
    for (Communicator* via : vias_) via->reserve(messages, regions);
    part_.reserve(static_cast<std::size_t>(messages));
    part_of_.reserve(static_cast<std::size_t>(messages));
    inner_.reserve(static_cast<std::size_t>(messages));
    flights_.reserve(messages);
  }
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override {
    std::unique_ptr<Communicator> part = control().group(ranks);
    if (part == nullptr) return nullptr;
    std::vector<Route> routes;
    for (const int member : ranks) routes.push_back(routes_[static_cast<std::size_t>(member)]);
    return std::make_unique<CompositeCommunicator>(std::move(part), std::move(routes));
  }
  void abort(const CommunicationFault& fault) override {
    for (Communicator* via : vias_) via->abort(fault);
    DataPlaneCommunicator::abort(fault);
  }

 private:
  struct Flight {
    Message message;
    i64 bytes = 0;
    Ticket inner = -1;
  };

  [[nodiscard]] Ticket open(const Message& message) {
    const Ticket ticket = flights_.open([this](i64 count) { reserve(count, 0); });
    flights_[ticket] = {message, message.bytes(), -1};
    return ticket;
  }
  [[nodiscard]] Communicator& via_of(const Flight& flight) {
    return *routes_[static_cast<std::size_t>(flight.message.peer)].via;
  }
  void finish(Flight& flight, Ticket ticket) {
    traffic().count(flight.message.tick, flight.message.peer, flight.message.send, flight.bytes);
    flights_.close(ticket);
  }

  std::vector<Route> routes_;
  std::vector<Communicator*> vias_;
  std::string name_;
  TicketTable<Flight> flights_;
  std::vector<Message> part_;
  std::vector<Ticket> part_of_, inner_;
};

}  // namespace

std::unique_ptr<Communicator> make_composite_communicator(Communicator& control, std::vector<Route> routes) {
  return std::make_unique<CompositeCommunicator>(control, std::move(routes));
}

}  // namespace usp::comm
