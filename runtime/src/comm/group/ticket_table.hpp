// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"

#include <algorithm>
#include <deque>
#include <vector>

namespace usp::comm {

/// Entries of the messages in flight, by ticket. An entry keeps its address and, after it is closed, its
/// memory: a later message reuses it. One thread opens and closes.
template <class T>
class TicketTable {
 public:
  /// Makes room for `count` messages in flight; new entries are constructed from `arguments`.
  template <class... Arguments>
  void reserve(i64 count, const Arguments&... arguments) {
    free_.reserve(std::max(free_.capacity(), static_cast<std::size_t>(std::max<i64>(count, 0))));
    while (size() < count) {
      free_.push_back(static_cast<Ticket>(entries_.size()));
      entries_.emplace_back(arguments...);
      open_.push_back(false);
    }
  }
  /// Takes a free entry. @param grow called with the new size when all entries are in flight; it reserves
  template <class Grow>
  [[nodiscard]] Ticket open(const Grow& grow) {
    if (free_.empty()) grow(std::max<i64>(16, 2 * size()));
    const Ticket ticket = free_.back();
    free_.pop_back();
    open_[static_cast<std::size_t>(ticket)] = true;
    return ticket;
  }
  /// The entry of an open ticket. Throws InternalError for another.
  [[nodiscard]] T& of(Ticket ticket) {
    expects(ticket >= 0 && ticket < size(), "a ticket that was never given");
    expects(open_[static_cast<std::size_t>(ticket)], "a ticket that is spent");
    return entries_[static_cast<std::size_t>(ticket)];
  }
  void close(Ticket ticket) {
    open_[static_cast<std::size_t>(ticket)] = false;
    free_.push_back(ticket);
  }
  /// The entry by its number, open or not. @pre 0 <= ticket < size()
  [[nodiscard]] T& operator[](Ticket ticket) { return entries_[static_cast<std::size_t>(ticket)]; }
  [[nodiscard]] i64 size() const { return static_cast<i64>(entries_.size()); }
  [[nodiscard]] i64 in_flight() const { return static_cast<i64>(entries_.size() - free_.size()); }
  /// Calls `visit` with the entry of every open ticket.
  template <class Visit>
  void for_each_open(const Visit& visit) {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (open_[i]) visit(entries_[i]);
  }

 private:
  std::deque<T> entries_;
  std::vector<bool> open_;
  std::vector<Ticket> free_;
};

}  // namespace usp::comm
