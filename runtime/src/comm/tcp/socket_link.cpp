// SPDX-License-Identifier: Apache-2.0
#include "socket_link.hpp"

#include "../failure/faults.hpp"

#include <fmt/format.h>

#include <cstring>

namespace usp::comm {
namespace {

/// Payloads up to that many bytes travel in one call with their header and trailer.
constexpr i64 small_bytes = 1024;
/// Runs that one call of the system moves.
constexpr int max_runs = 128;

/// Runs of a payload from `at` on, at most `bytes`, as the system takes them. Returns how many.
int runs_of(RunCursor at, i64 bytes, iovec* parts, int room) {
  int count = 0;
  for (; bytes > 0 && count < room; ++count) {
    const i64 length = std::min(at.left(), bytes);
    parts[count] = {at.data(), static_cast<std::size_t>(length)};
    at.advance(length);
    bytes -= length;
  }
  return count;
}

void advance(RunCursor& at, i64 bytes) {
  while (bytes > 0) {
    const i64 step = std::min(at.left(), bytes);
    at.advance(step);
    bytes -= step;
  }
}

/// Copies the next bytes of a payload to plain memory, or the other way.
void copy(RunCursor at, i64 bytes, std::byte* memory, bool to_memory) {
  while (bytes > 0) {
    const i64 step = std::min(at.left(), bytes);
    std::memcpy(to_memory ? memory : at.data(), to_memory ? at.data() : memory,
                static_cast<std::size_t>(step));
    at.advance(step);
    memory += step;
    bytes -= step;
  }
}

}  // namespace

SocketLink::SocketLink(Socket socket, int mine, int peer, SlotTable& slots, i64 part_bytes)
    : socket_(std::move(socket)), mine_(mine), peer_(peer), slots_(slots), part_bytes_(part_bytes) {}

bool SocketLink::has_to_write() const {
  return is_open() && (out_begin_ < out_end_ || part_ != nullptr || !asking_.empty() || !ready_.empty() ||
                       trailer_sent_ < trailer_.size());
}

void SocketLink::reserve(i64 requests) {
  requests_.reserve(static_cast<std::size_t>(requests));
}

void SocketLink::post(SocketSlot& slot) {
  if (!slot.message.send) return asking_.append(slot);
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.context == slot.context && request.tag == slot.message.tag;
  });
  if (found == requests_.end()) return unasked_.append(slot);
  const Request request = *found;
  requests_.erase(found);
  slots_.count_requests(-1);
  match(slot, request);
}

void SocketLink::match(SocketSlot& send, const Request& request) {
  if (send.bytes != request.bytes)
    throw CommunicationError(size_fault(send.message, mine_, peer_, send.bytes, request.bytes));
  send.id = request.id;
  ready_.append(send);
}

void SocketLink::put(const void* data, std::size_t bytes) {
  std::memcpy(&out_[out_end_], data, bytes);
  out_end_ += bytes;
}

/// Puts what may leave in front of the next payload.
void SocketLink::stage() {
  if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
  while (part_ == nullptr && out_.size() - out_end_ >= sizeof(Frame) + small_bytes) {
    if (SocketSlot* receive = asking_.pop()) {
      const Frame frame{Frame::Kind::request, receive->id, receive->context, receive->message.tag,
                        receive->bytes};
      put(&frame, sizeof frame);
    } else if (!ready_.empty()) {
      stage_part();
    } else {
      return;
    }
  }
}

/// The next part of the first payload that was asked for.
void SocketLink::stage_part() {
  SocketSlot& send = *ready_.first();
  part_ = &send;
  part_left_ = std::min(part_bytes_, send.bytes - send.moved);
  const Frame frame{Frame::Kind::data, send.id, send.context, send.message.tag, part_left_};
  put(&frame, sizeof frame);
  if (part_left_ > small_bytes) return;
  const i64 bytes = part_left_;
  copy(send.at, bytes, &out_[out_end_], true);
  out_end_ += static_cast<std::size_t>(bytes);
  sent(bytes);
}

/// So many bytes of the part's payload have left.
void SocketLink::sent(i64 bytes) {
  SocketSlot& send = *part_;
  advance(send.at, bytes);
  send.moved += bytes;
  payload_ += bytes;
  part_left_ -= bytes;
  if (part_left_ > 0) return;
  part_ = nullptr;
  if (send.moved < send.bytes) return;
  ready_.pop();
  send.state = SocketSlot::State::done;
}

void SocketLink::write(i64 limit) {
  while (limit > 0 && has_to_write()) {
    if (!stopped_) stage();
    iovec parts[max_runs + 1];
    const auto ahead = static_cast<i64>(out_end_ - out_begin_);
    parts[0] = {&out_[out_begin_], static_cast<std::size_t>(ahead)};
    int count = 1;
    const bool last = ahead == 0 && part_ == nullptr;
    if (last) parts[0] = {trailer_.data() + trailer_sent_, trailer_.size() - trailer_sent_};
    if (part_ != nullptr) count += runs_of(part_->at, part_left_, parts + 1, max_runs);
    const i64 moved = socket_.send(parts, count);
    if (moved <= 0) return;  // read() learns that a connection is over, after what arrived before
    limit -= moved;
    moved_ += moved;
    if (last) {
      trailer_sent_ += static_cast<std::size_t>(moved);
      continue;
    }
    out_begin_ += static_cast<std::size_t>(std::min(moved, ahead));
    if (moved > ahead) sent(moved - ahead);
  }
}

void SocketLink::read(i64 limit) {
  while (is_open() && limit > 0) {
    if (in_begin_ > 0) {
      std::copy(in_.begin() + static_cast<std::ptrdiff_t>(in_begin_),
                in_.begin() + static_cast<std::ptrdiff_t>(in_end_), in_.begin());
      in_end_ -= in_begin_;
      in_begin_ = 0;
    }
    iovec parts[max_runs + 1];
    // Straight to its place what goes there; what comes after it, behind it.
    i64 direct = 0;
    int count = 0;
    if (in_end_ == 0 && filling_ != nullptr) {
      count = runs_of(filling_->at, filling_left_, parts, max_runs);
      for (int i = 0; i < count; ++i) direct += static_cast<i64>(parts[i].iov_len);
    }
    if (direct == filling_left_ || count == 0) parts[count++] = {&in_[in_end_], in_.size() - in_end_};
    const i64 moved = socket_.receive(parts, count);
    if (moved < 0) return socket_.close();
    if (moved == 0) return;
    limit -= moved;
    moved_ += moved;
    if (direct > 0) arrived(std::min(moved, direct));
    if (moved > direct) in_end_ += static_cast<std::size_t>(moved - direct);
    parse();
  }
}

/// So many bytes of the payload that is being filled are in their place.
void SocketLink::arrived(i64 bytes) {
  filling_left_ -= bytes;
  if (filling_ == nullptr) return;
  SocketSlot& receive = *filling_;
  advance(receive.at, bytes);
  receive.moved += bytes;
  payload_ += bytes;
  if (filling_left_ == 0) filling_ = nullptr;
  if (receive.moved == receive.bytes) receive.state = SocketSlot::State::done;
}

/// Takes what has arrived in whole.
void SocketLink::parse() {
  while (in_begin_ < in_end_) {
    const auto there = static_cast<i64>(in_end_ - in_begin_);
    if (filling_left_ > 0) {
      const i64 bytes = std::min(there, filling_left_);
      if (filling_ != nullptr) copy(filling_->at, bytes, &in_[in_begin_], false);
      in_begin_ += static_cast<std::size_t>(bytes);
      arrived(bytes);
      continue;
    }
    Arrival arrival = parse_frame({&in_[in_begin_], in_end_ - in_begin_});
    if (arrival.kind == Arrival::Kind::part) return;
    if (arrival.kind == Arrival::Kind::nonsense) refuse_bytes();
    if (arrival.failure) received_failure_ = arrival.failure;
    in_begin_ += arrival.length;
    take(arrival.frame);
  }
}

void SocketLink::take(const Frame& frame) {
  switch (frame.kind) {
    case Frame::Kind::request:
      return take_request(frame);
    case Frame::Kind::data:
      return take_data(frame);
    case Frame::Kind::failure:
      return;
    case Frame::Kind::shutdown:
      peer_closed_ = true;
      return;
  }
}

void SocketLink::take_request(const Frame& frame) {
  if (stopped_) return;
  const Request request{frame.context, frame.tag, frame.bytes, frame.id};
  SocketSlot* send = unasked_.take([&](const SocketSlot& slot) {
    return slot.context == request.context && slot.message.tag == request.tag;
  });
  if (send != nullptr) return match(*send, request);
  if (static_cast<i64>(requests_.size()) >= max_requests_of_peer || slots_.requests() >= max_requests)
    refuse_flood();
  slots_.count_requests(1);
  requests_.push_back(request);
}

void SocketLink::take_data(const Frame& frame) {
  SocketSlot* receive = slots_.find(frame.id);
  const bool wanted = receive != nullptr && receive->state == SocketSlot::State::open &&
                      !receive->message.send && receive->peer == peer_;
  if (!stopped_ && (!wanted || frame.bytes > receive->bytes - receive->moved)) refuse_bytes();
  filling_ = stopped_ ? nullptr : receive;
  filling_left_ = frame.bytes;
}

void SocketLink::refuse_bytes() const {
  throw CommunicationError({"run",
                            -1,
                            mine_,
                            {peer_},
                            fmt::format("rank {} sent bytes that rank {} did not ask for; the connection is "
                                        "damaged, or both run another version",
                                        peer_, mine_)});
}

void SocketLink::refuse_flood() const {
  throw CommunicationError(
      {"run",
       -1,
       mine_,
       {peer_},
       fmt::format("rank {} asks for more messages than rank {} has room to note ({} that it did not post "
                   "yet, {} of all ranks; at most {} and {}); the ranks do not follow the same schedule",
                   peer_, mine_, requests_.size(), slots_.requests(), max_requests_of_peer, max_requests)});
}

void SocketLink::stop() {
  if (stopped_) return;
  stopped_ = true;
  if (part_ != nullptr) {
    trailer_.resize(static_cast<std::size_t>(part_left_));
    copy(part_->at, part_left_, trailer_.data(), true);
  }
  part_ = filling_ = nullptr;
  asking_.clear();
  unasked_.clear();
  ready_.clear();
  slots_.count_requests(-static_cast<i64>(requests_.size()));
  requests_.clear();
}

void SocketLink::send_failure(const FailureFrame& failure_frame) {
  const Frame frame{.kind = Frame::Kind::failure};
  const auto* head = reinterpret_cast<const std::byte*>(&frame);
  const auto* body = reinterpret_cast<const std::byte*>(&failure_frame);
  trailer_.insert(trailer_.end(), head, head + sizeof frame);
  trailer_.insert(trailer_.end(), body, body + sizeof failure_frame);
}

void SocketLink::send_shutdown() {
  const Frame frame{.kind = Frame::Kind::shutdown};
  const auto* head = reinterpret_cast<const std::byte*>(&frame);
  trailer_.insert(trailer_.end(), head, head + sizeof frame);
}

void SocketLink::end_writing() {
  if (!is_open() || ended_ || has_to_write()) return;
  ended_ = true;
  socket_.end_writing();
}

}  // namespace usp::comm
