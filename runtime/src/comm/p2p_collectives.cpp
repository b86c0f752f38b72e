// SPDX-License-Identifier: Apache-2.0
#include "p2p_collectives.hpp"

#include <algorithm>
#include <cstring>

namespace usp {
namespace {

/// Elements that a reduction gathers from each rank at a time.
constexpr i64 reduce_tile = 1 << 16;

[[nodiscard]] ByteBox run_of(const void* data, i64 bytes) {
  ByteBox box;
  box.data = static_cast<std::byte*>(const_cast<void*>(data));  // a send only reads
  box.run_bytes = bytes;
  return box;
}

[[nodiscard]] Message message(int peer, bool send, i64 tag, const char* operation, const ByteBox& box) {
  Message m;
  m.peer = peer;
  m.send = send;
  m.tag = tag;
  m.tick = -1;
  m.operation = operation;
  m.boxes = &box;
  m.box_count = 1;
  return m;
}

}  // namespace

void P2pCommunicator::exchange(std::vector<Message>& messages) {
  std::vector<Ticket> tickets(messages.size());
  post(messages.data(), static_cast<i64>(messages.size()), tickets.data());
  for (const Ticket ticket : tickets) wait(ticket);
}

void P2pCommunicator::barrier() {
  const char mine = 0;
  std::vector<char> all(static_cast<std::size_t>(size()));
  all_gather(&mine, all.data(), 1);
}

void P2pCommunicator::all_gather(const void* mine, void* all, i64 bytes) {
  const i64 tag = next_tag();
  std::vector<ByteBox> boxes(static_cast<std::size_t>(size()) + 1);
  boxes.back() = run_of(mine, bytes);
  std::vector<Message> messages;
  for (int p = 0; p < size(); ++p) {
    ByteBox& part = boxes[static_cast<std::size_t>(p)];
    part = run_of(static_cast<std::byte*>(all) + p * bytes, bytes);
    if (p == rank()) {
      if (bytes > 0) std::memmove(part.data, mine, static_cast<std::size_t>(bytes));
      continue;
    }
    messages.push_back(message(p, true, tag, "a gather", boxes.back()));
    messages.push_back(message(p, false, tag, "a gather", part));
  }
  exchange(messages);
}

void P2pCommunicator::broadcast(void* data, i64 bytes, int root) {
  const i64 tag = next_tag();
  const ByteBox box = run_of(data, bytes);
  std::vector<Message> messages;
  if (rank() != root)
    messages.push_back(message(root, false, tag, "a broadcast", box));
  else
    for (int p = 0; p < size(); ++p)
      if (p != root) messages.push_back(message(p, true, tag, "a broadcast", box));
  exchange(messages);
}

template <class T>
void P2pCommunicator::reduce(T* data, i64 count) {
  std::vector<T> parts(static_cast<std::size_t>(std::min(count, reduce_tile) * size()));
  for (i64 begin = 0; begin < count; begin += reduce_tile) {
    const i64 tile = std::min(reduce_tile, count - begin);
    all_gather(data + begin, parts.data(), tile * static_cast<i64>(sizeof(T)));
    for (i64 i = 0; i < tile; ++i) {
      T sum = parts[static_cast<std::size_t>(i)];
      for (int p = 1; p < size(); ++p) sum += parts[static_cast<std::size_t>(p * tile + i)];
      data[begin + i] = sum;
    }
  }
}

template <class T>
void P2pCommunicator::reduce_scatter(const T* parts, T* mine, i64 count) {
  const i64 bytes = count * static_cast<i64>(sizeof(T)), tag = next_tag();
  std::vector<T> arrived(static_cast<std::size_t>(count * size()));
  std::vector<ByteBox> boxes(static_cast<std::size_t>(size()) * 2);
  std::vector<Message> messages;
  for (int p = 0; p < size(); ++p) {
    ByteBox& out = boxes[static_cast<std::size_t>(2 * p)] = run_of(parts + p * count, bytes);
    ByteBox& in = boxes[static_cast<std::size_t>(2 * p) + 1] = run_of(arrived.data() + p * count, bytes);
    if (p == rank()) {
      std::copy_n(parts + p * count, count, arrived.begin() + p * count);
      continue;
    }
    messages.push_back(message(p, true, tag, "a reduce-scatter", out));
    messages.push_back(message(p, false, tag, "a reduce-scatter", in));
  }
  exchange(messages);
  for (i64 i = 0; i < count; ++i) {
    T sum = arrived[static_cast<std::size_t>(i)];
    for (int p = 1; p < size(); ++p) sum += arrived[static_cast<std::size_t>(p * count + i)];
    mine[i] = sum;
  }
}

void P2pCommunicator::all_reduce_sum(float* data, i64 count) {
  reduce(data, count);
}
void P2pCommunicator::all_reduce_sum(double* data, i64 count) {
  reduce(data, count);
}
void P2pCommunicator::all_reduce_sum(i64* data, i64 count) {
  reduce(data, count);
}
void P2pCommunicator::reduce_scatter_sum(const float* parts, float* mine, i64 count) {
  reduce_scatter(parts, mine, count);
}
void P2pCommunicator::reduce_scatter_sum(const double* parts, double* mine, i64 count) {
  reduce_scatter(parts, mine, count);
}

}  // namespace usp
