// SPDX-License-Identifier: Apache-2.0
#include "p2p_collectives.hpp"

namespace usp {
namespace {

class SerialCommunicator final : public P2pCommunicator {
 public:
  SerialCommunicator() { traffic_.reset(0, 1); }
  [[nodiscard]] const char* name() const override { return "serial"; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void post(const Message*, i64 count, Ticket*) override {
    expects(count == 0, "one rank has no peer to talk to");
  }
  void wait(Ticket) override { throw InternalError("one rank has nothing to wait for"); }
  [[nodiscard]] bool test(Ticket) override { throw InternalError("one rank has nothing to wait for"); }
  void progress() override {}
  void reserve(i64, i64) override {}
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>&) override { return nullptr; }
  void abort(const CommunicationFault& fault) override { throw CommunicationError(fault); }
  [[nodiscard]] Traffic& traffic() override { return traffic_; }

 private:
  Traffic traffic_;
};

}  // namespace

std::unique_ptr<Communicator> make_serial_communicator() {
  return std::make_unique<SerialCommunicator>();
}

}  // namespace usp
