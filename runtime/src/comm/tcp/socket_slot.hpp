// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../group/ticket_table.hpp"
#include "../regions/region_walk.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace usp::comm {

/// A message in flight over a connection. Its ticket is its place in the table.
struct SocketSlot {
  enum class State : std::uint8_t { free, open, done };
  State state = State::free;
  Message message;
  int peer = 0;               ///< its rank in the whole job
  std::uint64_t context = 0;  ///< of the communicator
  i64 bytes = 0;
  i64 moved = 0;  ///< bytes of the payload that went through a call of the system, or its staging
  RunCursor at;
  std::uint32_t id = 0;  ///< its own, and of a send that was asked for: the receiver's
  SocketSlot* next = nullptr;
};

/// Slots in the order in which they came. Links them: a slot is in one list at a time.
class SlotQueue {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  [[nodiscard]] SocketSlot* first() const { return first_; }
  void append(SocketSlot& slot) {
    slot.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &slot;
    last_ = &slot;
  }
  SocketSlot* pop() {
    return take([](const SocketSlot&) { return true; });
  }
  /// Removes the first one that fits; null when none does.
  template <class Fits>
  SocketSlot* take(const Fits& fits) {
    SocketSlot* before = nullptr;
    for (SocketSlot* slot = first_; slot != nullptr; before = slot, slot = slot->next) {
      if (!fits(*slot)) continue;
      (before == nullptr ? first_ : before->next) = slot->next;
      if (last_ == slot) last_ = before;
      return slot;
    }
    return nullptr;
  }
  void clear() { first_ = last_ = nullptr; }

 private:
  SocketSlot* first_ = nullptr;
  SocketSlot* last_ = nullptr;
};

/// The slots of a process, of all its communicators.
class SlotTable {
 public:
  /// Makes room for so many more.
  void grow(i64 count) { slots_.reserve(slots_.size() + count); }
  Ticket open(const Message& message, int peer, std::uint64_t context) {
    const Ticket ticket = slots_.open([this](i64 count) { slots_.reserve(count); });
    SocketSlot& slot = slots_[ticket];
    slot.message = message;
    slot.peer = peer;
    slot.context = context;
    slot.bytes = message.bytes();
    slot.moved = 0;
    slot.at = RunCursor(message.regions, message.region_count);
    slot.id = static_cast<std::uint32_t>(ticket);
    slot.state = slot.bytes == 0 ? SocketSlot::State::done : SocketSlot::State::open;
    return ticket;
  }
  SocketSlot& of(Ticket ticket) { return slots_.of(ticket); }
  void close(Ticket ticket) {
    slots_[ticket].state = SocketSlot::State::free;
    slots_.close(ticket);
  }
  /// By the number that travels; null for one that never was.
  [[nodiscard]] SocketSlot* find(std::uint32_t id) {
    return id < slots_.size() ? &slots_[static_cast<Ticket>(id)] : nullptr;
  }
  template <class Visit>
  void for_each_open(const Visit& visit) {
    slots_.for_each_open(visit);
  }
  [[nodiscard]] i64 size() const { return slots_.size(); }
  /// Requests of all peers that wait for their sends.
  [[nodiscard]] i64 requests() const { return requests_; }
  void count_requests(i64 change) { requests_ += change; }

 private:
  TicketTable<SocketSlot> slots_;
  i64 requests_ = 0;
};

}  // namespace usp::comm
