// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <optional>

namespace usp::comm {
namespace {

class SerialCommunicator final : public CollectiveCommunicator {
 public:
  [[nodiscard]] const char* name() const override { return "serial"; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] const CommOptions& options() const override { return options_; }
  i64 wait(Ticket /*ticket*/) override { throw InternalError("a single rank waits for a message"); }
  [[nodiscard]] std::optional<i64> test(Ticket /*ticket*/) override {
    throw InternalError("a single rank tests a message");
  }
  [[nodiscard]] bool capturable() const override { return true; }
  void progress() override {
    if (fault_) throw CommunicationError(*fault_);
  }
  void reserve(i64 /*messages*/, i64 /*regions*/) override {}
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override {
    check_group(*this, ranks);
    return nullptr;
  }
  void abort(const CommunicationFault& fault) override {
    if (!fault_) fault_ = fault;
  }

 protected:
  void start(const Message* /*messages*/, i64 /*count*/, Ticket* /*tickets*/) override { progress(); }

 private:
  CommOptions options_;
  std::optional<CommunicationFault> fault_;
};

}  // namespace

std::unique_ptr<Communicator> make_serial_communicator() {
  return std::make_unique<SerialCommunicator>();
}

}  // namespace usp::comm
