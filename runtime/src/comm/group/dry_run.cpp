// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/dry_run.hpp"

#include "../failure/faults.hpp"
#include "ticket_table.hpp"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <tuple>
#include <vector>

namespace usp::comm {
namespace {

/// The end of a message that has not met the other one.
struct Endpoint {
  const char* operation = "";
  i64 bytes = 0;
  i64 order = 0;  ///< of posting, over all ranks
  std::int32_t tick = 0;
};

/// Matches by (tag, source, target); messages of one key meet in the order of posting.
class Ledger {
 public:
  explicit Ledger(int ranks) : open_(static_cast<std::size_t>(ranks)) {}

  void add(const Message& message, int rank) {
    const i64 bytes = message.bytes();
    if (bytes == 0) return;
    Ends& mine = ends_of(rank);
    const auto other = mine.lower_bound({message.tag, message.peer, !message.send});
    if (other == mine.end() || other->first != Key{message.tag, message.peer, !message.send}) {
      ends_of(message.peer)
          .emplace(Key{message.tag, rank, message.send},
                   Endpoint{message.operation, bytes, order_++, message.tick});
      return;
    }
    if (other->second.bytes != bytes && fault_.empty())
      fault_ = size_fault(message, rank, message.peer, bytes, other->second.bytes).message;
    mine.erase(other);
  }

  void check() const {
    if (!fault_.empty()) throw InternalError(fault_);
    const Endpoint* oldest = nullptr;
    Key key;
    std::size_t awaited = 0;
    for (std::size_t rank = 0; rank < open_.size(); ++rank)
      for (const auto& [at, end] : open_[rank])
        if (oldest == nullptr || end.order < oldest->order) oldest = &end, key = at, awaited = rank;
    if (oldest == nullptr) return;
    const auto& [tag, rank, send] = key;
    throw InternalError(
        fmt::format("rank {} {} {} bytes {} rank {} in {} (tag {}), which {} nothing of the kind; the ranks "
                    "do not follow the same "
                    "schedule",
                    rank, send ? "sends" : "expects", oldest->bytes, send ? "to" : "from", awaited,
                    name_operation(oldest->operation, oldest->tick), tag, send ? "expects" : "sends"));
  }

 private:
  using Key = std::tuple<i64, int, bool>;     ///< tag, the rank that posted it, whether it sends
  using Ends = std::multimap<Key, Endpoint>;  ///< equal keys stay in the order of posting
  Ends& ends_of(int awaited) { return open_[static_cast<std::size_t>(awaited)]; }

  std::vector<Ends> open_;  ///< by the rank that has not posted its end
  i64 order_ = 0;
  std::string fault_;  ///< the first message whose ends differ in size
};

[[noreturn]] void refuse(const char* what) {
  throw InternalError(std::string(what) + " in a dry run, whose ranks are played one after another");
}

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(Ledger& ledger, int rank, int size) : ledger_(ledger), rank_(rank), size_(size) {}
  [[nodiscard]] const char* name() const override { return "dry_run"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] const CommOptions& options() const override { return options_; }
  void post(const Message* messages, i64 count, Ticket* tickets) override {
    for (i64 i = 0; i < count; ++i) {
      const Message& message = messages[i];
      expects(message.peer >= 0 && message.peer < size_, "a message to a rank that is not there");
      expects(message.peer != rank_, "a message to the rank itself; copy instead");
      ledger_.add(message, rank_);
      tickets[i] = sizes_.open([this](i64 size) { sizes_.reserve(size); });
      sizes_[tickets[i]] = message.bytes();
    }
  }
  i64 wait(Ticket ticket) override {
    const i64 bytes = sizes_.of(ticket);
    sizes_.close(ticket);
    return bytes;
  }
  [[nodiscard]] std::optional<i64> test(Ticket ticket) override { return wait(ticket); }
  void progress() override {}
  void reserve(i64 /*messages*/, i64 /*regions*/) override {}
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

 private:
  Ledger& ledger_;
  int rank_;
  int size_;
  CommOptions options_;
  TicketTable<i64> sizes_;
};

}  // namespace

struct DryRun::State {
  explicit State(int size) : ledger(size) {}
  Ledger ledger;
  std::deque<DryCommunicator> ranks;
};

DryRun::DryRun(int ranks) : state_(std::make_unique<State>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) state_->ranks.emplace_back(state_->ledger, rank, ranks);
}

DryRun::~DryRun() = default;

Communicator& DryRun::rank(int rank) {
  return state_->ranks.at(static_cast<std::size_t>(rank));
}

void DryRun::check() const {
  state_->ledger.check();
}

}  // namespace usp::comm
