// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include "usp/base/digest.hpp"
#include "usp/comm/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace usp::comm {
namespace {

/// Elements of one rank's part that a reduction handles at a time; bounds its scratch memory.
constexpr i64 block_elements = i64{1} << 16;

/// The messages of one collective: posted together, then waited for.
class Exchange {
 public:
  explicit Exchange(const char* operation) : operation_(operation) {}
  void send(int peer, const void* data, i64 bytes) { add(peer, true, const_cast<void*>(data), bytes); }
  void receive(int peer, void* data, i64 bytes) { add(peer, false, data, bytes); }
  void run(CollectiveCommunicator& communicator) {
    for (std::size_t i = 0; i < messages_.size(); ++i) messages_[i].regions = &regions_[i];
    tickets_.resize(messages_.size());
    communicator.start(messages_.data(), static_cast<i64>(messages_.size()), tickets_.data());
    for (const Ticket ticket : tickets_) communicator.wait(ticket);
  }

 private:
  void add(int peer, bool send, void* data, i64 bytes) {
    regions_.push_back({.data = static_cast<std::byte*>(data), .run_bytes = bytes});
    messages_.push_back({.peer = peer,
                         .send = send,
                         .tag = collective_tag,
                         .tick = no_tick,
                         .operation = operation_,
                         .region_count = 1});
  }
  const char* operation_;
  std::vector<StridedBytes> regions_;
  std::vector<Message> messages_;
  std::vector<Ticket> tickets_;
};

/// The peers in the order in which this rank turns to them: each starts at its right neighbour.
std::vector<int> peers_of(const Communicator& communicator) {
  std::vector<int> peers;
  for (int step = 1; step < communicator.size(); ++step)
    peers.push_back((communicator.rank() + step) % communicator.size());
  return peers;
}

/// out[i] = term(0)[i] + term(1)[i] + ... in rank order.
template <class T, class Term>
void sum_in_rank_order(int ranks, i64 count, const Term& term, T* out) {
  for (i64 i = 0; i < count; ++i) {
    T sum = term(0)[i];
    for (int rank = 1; rank < ranks; ++rank) sum += term(rank)[i];
    out[i] = sum;
  }
}

/// Sends theirs(peer) to each peer, receives its counterpart of `count` elements, and sums all in rank order
/// into `out`; `own` is this rank's term and may be `out`. `theirs_count(peer)` elements go to a peer.
template <class T, class Theirs, class Count>
void exchange_and_sum(CollectiveCommunicator& communicator, const char* operation, const Theirs& theirs,
                      const Count& theirs_count, const T* own, T* out, i64 count, std::vector<T>& scratch) {
  Exchange exchange(operation);
  scratch.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(communicator.size()));
  const auto size = static_cast<i64>(sizeof(T));
  for (const int peer : peers_of(communicator)) {
    exchange.send(peer, theirs(peer), theirs_count(peer) * size);
    exchange.receive(peer, scratch.data() + peer * count, count * size);
  }
  exchange.run(communicator);
  const auto term = [&](int rank) {
    return rank == communicator.rank() ? own : scratch.data() + rank * count;
  };
  sum_in_rank_order(communicator.size(), count, term, out);
}

/// Each rank sums its own slice of a block and gives it to all: two exchanges of the block's bytes.
template <class T>
void all_reduce(CollectiveCommunicator& communicator, T* data, i64 count) {
  const int ranks = communicator.size();
  if (ranks == 1) return;
  std::vector<T> scratch;
  for (i64 base = 0; base < count; base += block_elements * ranks) {
    const i64 block = std::min(count - base, block_elements * ranks);
    const i64 part = (block + ranks - 1) / ranks;
    const auto begin = [&](int rank) { return std::min(block, part * rank); };
    const auto length = [&](int rank) { return begin(rank + 1) - begin(rank); };
    const auto at = [&](int rank) { return data + base + begin(rank); };
    T* mine = at(communicator.rank());
    const i64 mine_count = length(communicator.rank());
    exchange_and_sum<T>(communicator, "all_reduce", at, length, mine, mine, mine_count, scratch);
    Exchange give("all_reduce");
    for (const int peer : peers_of(communicator)) {
      give.send(peer, mine, mine_count * static_cast<i64>(sizeof(T)));
      give.receive(peer, at(peer), length(peer) * static_cast<i64>(sizeof(T)));
    }
    give.run(communicator);
  }
}

template <class T>
void reduce_scatter(CollectiveCommunicator& communicator, const T* parts, T* mine, i64 count) {
  std::vector<T> scratch;
  for (i64 base = 0; base < count; base += block_elements) {
    const i64 block = std::min(count - base, block_elements);
    const auto at = [&](int rank) { return parts + rank * count + base; };
    exchange_and_sum<T>(
        communicator, "reduce_scatter", at, [&](int) { return block; }, at(communicator.rank()), mine + base,
        block, scratch);
  }
}

}  // namespace

void CollectiveCommunicator::post(const Message* messages, i64 count, Ticket* tickets) {
  for (i64 i = 0; i < count; ++i) {
    const Message& message = messages[i];
    expects(message.peer >= 0 && message.peer < size(), "a message to a rank that is not there");
    expects(message.peer != rank(), "a message to the rank itself; copy instead");
    expects(message.tag != collective_tag, "a message with the tag of the collectives");
  }
  start(messages, count, tickets);
}

void CollectiveCommunicator::barrier() {
  std::byte mine{};
  std::vector<std::byte> theirs(static_cast<std::size_t>(size()));
  Exchange exchange("barrier");
  for (const int peer : peers_of(*this)) {
    exchange.send(peer, &mine, 1);
    exchange.receive(peer, &theirs[static_cast<std::size_t>(peer)], 1);
  }
  exchange.run(*this);
}

void CollectiveCommunicator::all_gather(const void* mine, void* all, i64 bytes) {
  auto* out = static_cast<std::byte*>(all);
  Exchange exchange("all_gather");
  for (const int peer : peers_of(*this)) {
    exchange.send(peer, mine, bytes);
    exchange.receive(peer, out + peer * bytes, bytes);
  }
  if (bytes > 0) std::memmove(out + rank() * bytes, mine, static_cast<std::size_t>(bytes));
  exchange.run(*this);
}

void CollectiveCommunicator::broadcast(void* data, i64 bytes, int root) {
  expects(root >= 0 && root < size(), "a broadcast from a rank that is not there");
  Exchange exchange("broadcast");
  if (rank() == root) {
    for (const int peer : peers_of(*this)) exchange.send(peer, data, bytes);
  } else {
    exchange.receive(root, data, bytes);
  }
  exchange.run(*this);
}

void CollectiveCommunicator::all_reduce_sum(float* data, i64 count) {
  all_reduce(*this, data, count);
}

void CollectiveCommunicator::all_reduce_sum(double* data, i64 count) {
  all_reduce(*this, data, count);
}

void CollectiveCommunicator::all_reduce_sum(i64* data, i64 count) {
  all_reduce(*this, data, count);
}

void CollectiveCommunicator::reduce_scatter_sum(const float* parts, float* mine, i64 count) {
  reduce_scatter(*this, parts, mine, count);
}

void CollectiveCommunicator::reduce_scatter_sum(const double* parts, double* mine, i64 count) {
  reduce_scatter(*this, parts, mine, count);
}

void check_group(Communicator& communicator, const std::vector<int>& ranks) {
  Digest digest;
  digest.add(ranks.size());
  for (const int rank : ranks) digest.add(rank);
  agree(communicator, {{"group", digest.value()}});
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool outside = !sorted.empty() && (sorted.front() < 0 || sorted.back() >= communicator.size());
  if (outside || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw UsageError(fmt::format(
        "a group's list has repeated ranks or ranks outside its communicator of {}; list each member once",
        communicator.size()));
}

}  // namespace usp::comm
