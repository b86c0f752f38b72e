// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/dry_run.hpp"

#include "../failure/faults.hpp"

#include <deque>
#include <map>
#include <tuple>

namespace usp {
namespace {

/// An end that has not met the other one.
struct End {
  Message message;
  i64 bytes = 0;
  i64 order = 0;  ///< of posting, over all ranks
};

struct Ends {
  std::deque<End> sends;
  std::deque<End> receives;
};

/// Matches by (tag, source, target); messages of one key meet in the order of posting.
class Ledger {
 public:
  void add(const Message& message, int rank) {
    const i64 bytes = message.bytes();
    if (bytes == 0) return;
    const Key key{message.tag, message.send ? rank : message.peer, message.send ? message.peer : rank};
    Ends& ends = open_[key];
    auto& others = message.send ? ends.receives : ends.sends;
    if (others.empty()) {
      (message.send ? ends.sends : ends.receives).push_back({message, bytes, order_++});
      return;
    }
    if (others.front().bytes != bytes && fault_.empty())
      fault_ = comm::size_fault(message, rank, message.peer, bytes, others.front().bytes).message;
    others.pop_front();
    if (ends.sends.empty() && ends.receives.empty()) open_.erase(key);
  }

  void check() const {
    if (!fault_.empty()) throw InternalError(fault_);
    const End* oldest = nullptr;
    Key key;
    for (const auto& [at, ends] : open_)
      for (const auto* list : {&ends.sends, &ends.receives})
        if (!list->empty() && (oldest == nullptr || list->front().order < oldest->order)) {
          oldest = &list->front();
          key = at;
        }
    if (oldest == nullptr) return;
    const auto& [tag, source, target] = key;
    const Message& message = oldest->message;
    throw InternalError("rank " + std::to_string(message.send ? source : target) +
                        (message.send ? " sends " : " expects ") + std::to_string(oldest->bytes) +
                        (message.send ? " bytes to rank " : " bytes from rank ") +
                        std::to_string(message.send ? target : source) + " in " +
                        comm::name_operation(message.operation, message.tick) + " (tag " +
                        std::to_string(tag) + "), which " + (message.send ? "expects" : "sends") +
                        " nothing of the kind; the ranks do not follow the same schedule");
  }

 private:
  using Key = std::tuple<i64, int, int>;
  std::map<Key, Ends> open_;
  i64 order_ = 0;
  std::string fault_;  ///< the first message whose ends differ in size
};

[[noreturn]] void refuse(const char* what) {
  throw InternalError(std::string(what) + " in a dry run, whose ranks are played one after another");
}

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(Ledger& ledger, int rank, int size) : ledger_(ledger), rank_(rank), size_(size) {
    traffic_.reset(0, size);
  }
  [[nodiscard]] const char* name() const override { return "dry_run"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void post(const Message* messages, i64 count, Ticket* tickets) override {
    for (i64 i = 0; i < count; ++i) {
      const Message& message = messages[i];
      expects(message.peer >= 0 && message.peer < size_, "a message to a rank that is not there");
      expects(message.peer != rank_, "a message to the rank itself; copy instead");
      ledger_.add(message, rank_);
      traffic_.count(message.tick, message.peer, message.send, message.bytes());
      tickets[i] = 0;
    }
  }
  void wait(Ticket /*ticket*/) override {}
  [[nodiscard]] bool test(Ticket /*ticket*/) override { return true; }
  void progress() override {}
  void reserve(i64 /*messages*/, i64 /*boxes*/) override {}
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& /*ranks*/) override {
    refuse("a group");
  }
  void barrier() override { refuse("a barrier"); }
  void all_gather(const void* /*mine*/, void* /*all*/, i64 /*bytes*/) override { refuse("an all_gather"); }
  void broadcast(void* /*data*/, i64 /*bytes*/, int /*root*/) override { refuse("a broadcast"); }
  void all_reduce_sum(float* /*data*/, i64 /*count*/) override { refuse("an all_reduce"); }
  void all_reduce_sum(double* /*data*/, i64 /*count*/) override { refuse("an all_reduce"); }
  void all_reduce_sum(i64* /*data*/, i64 /*count*/) override { refuse("an all_reduce"); }
  void reduce_scatter_sum(const float* /*parts*/, float* /*mine*/, i64 /*count*/) override {
    refuse("a reduce_scatter");
  }
  void reduce_scatter_sum(const double* /*parts*/, double* /*mine*/, i64 /*count*/) override {
    refuse("a reduce_scatter");
  }
  void abort(const CommunicationFault& fault) override { throw CommunicationError(fault); }
  [[nodiscard]] Traffic& traffic() override { return traffic_; }

 private:
  Ledger& ledger_;
  int rank_;
  int size_;
  Traffic traffic_;
};

}  // namespace

struct DryRun::State {
  Ledger ledger;
  std::deque<DryCommunicator> ranks;
};

DryRun::DryRun(int ranks) : state_(std::make_unique<State>()) {
  for (int rank = 0; rank < ranks; ++rank) state_->ranks.emplace_back(state_->ledger, rank, ranks);
}

DryRun::~DryRun() = default;

Communicator& DryRun::rank(int rank) {
  return state_->ranks.at(static_cast<std::size_t>(rank));
}

void DryRun::check() const {
  state_->ledger.check();
}

}  // namespace usp
