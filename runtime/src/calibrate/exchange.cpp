// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <utility>

namespace usp::measure {
namespace {

const char* name_of(NetworkOperation operation) {
  return word_of(operation).data();
}

/// Ranks of both ends of a hop are a displacement apart, which tells apart what a rank sends and receives.
i64 tag_of(int from, int to, int size) {
  return (to - from + size) % size;
}

}  // namespace

ExchangeRole role_of(const NetworkKey& key, const Machine& machine, int rank) {
  ExchangeRole role{key.operation, {}};
  const int host = machine.host_of[static_cast<std::size_t>(rank)], local = machine.local(rank);
  const int group = local / key.ranks_per_host;
  if (group >= key.groups) return role;
  if (key.operation == NetworkOperation::hop && key.hosts > 1) {
    for (int h = 0; h < machine.host_count(); ++h) role.group.push_back(machine.rank(h, local));
    return role;
  }
  const int first = host / key.hosts * key.hosts;
  if (first + key.hosts > machine.host_count()) return role;
  for (int h = first; h < first + key.hosts; ++h)
    for (int i = 0; i < key.ranks_per_host; ++i)
      role.group.push_back(machine.rank(h, group * key.ranks_per_host + i));
  return role;
}

ExchangeRole role_between(int first_host, int second_host, const Machine& machine, int rank) {
  const int a = machine.rank(first_host, 0), b = machine.rank(second_host, 0);
  if (rank != a && rank != b) return {NetworkOperation::hop, {}};
  return {NetworkOperation::hop, {a, b}};
}

ExchangeMemory::ExchangeMemory(comm::DataPlane& data_plane, kernels::Memory& memory, ExchangeShape shape)
    : memory_(memory), shape_(shape), received_(memory.make_arena()) {
  sent_ = data_plane.peer_arena(memory);
  if (sent_ != nullptr) return;
  own_sent_ = memory.make_arena();
  sent_ = own_sent_.get();
}

void ExchangeMemory::reserve(i64 sent_bytes, i64 received_bytes) {
  const auto grow = [&](kernels::Arena& arena, i64 bytes) {
    const i64 before = arena.bytes();
    arena.reserve(std::max(bytes, shape_.run_bytes));
    if (arena.bytes() > before) memory_.set_bytes(arena.data(), 0, arena.bytes());
  };
  grow(*sent_, sent_bytes);
  grow(*received_, received_bytes);
  memory_.synchronize();
}

Exchange::Exchange(comm::DataPlane& data_plane, ExchangeMemory& memory, ExchangeRole role, i64 bytes)
    : memory_(memory),
      role_(std::move(role)),
      bytes_(bytes),
      rank_(data_plane.control().rank()),
      size_(data_plane.control().size()) {
  expects(bytes % memory.shape().run_bytes == 0, "a message that is no multiple of its runs");
  const auto n = static_cast<i64>(role_.group.size());
  memory_.reserve(std::max<i64>(1, n) * bytes, std::max<i64>(1, n) * bytes);
  index_ = std::find(role_.group.begin(), role_.group.end(), rank_) - role_.group.begin();
  regions_.reserve(static_cast<std::size_t>(2 * n));  // starts point into it
  if (n > 0 && role_.operation == NetworkOperation::hop) {
    const auto at = [&](i64 i) { return role_.group[static_cast<std::size_t>((i + n) % n)]; };
    const int next = at(index_ + 1), before = at(index_ - 1);
    add({.peer = next, .send = true, .tag = tag_of(rank_, next, size_)},
        {memory_.sent(), {1, 1, 1}, {}, bytes_});
    add({.peer = before, .send = false, .tag = tag_of(before, rank_, size_)},
        {memory_.received(), {1, 1, 1}, {}, bytes_});
  } else {
    for (i64 i = 0; i < n; ++i)
      if (i != index_) add_peer(role_.group[static_cast<std::size_t>(i)], i, i);
  }
  channels_ = data_plane.connect(ends_);
}

/// @param place of the peer in the group, and of its rows in what is sent and received
void Exchange::add_peer(int peer, i64 place, i64 source) {
  comm::StridedBytes sent{memory_.sent(), {1, 1, 1}, {}, bytes_};
  const auto n = static_cast<i64>(role_.group.size());
  const i64 run = memory_.shape().run_bytes;
  if (strided())
    sent = {memory_.sent() + place * run, {1, 1, bytes_ / run}, {0, 0, n * run}, run};
  else if (role_.operation != NetworkOperation::all_gather)
    sent.data += place * bytes_;
  add({.peer = peer, .send = true, .tag = tag_of(rank_, peer, size_)}, sent);
  add({.peer = peer, .send = false, .tag = tag_of(peer, rank_, size_)},
      {memory_.received() + source * bytes_, {1, 1, 1}, {}, bytes_});
}

void Exchange::add(const comm::ChannelEnd& end, const comm::StridedBytes& region) {
  regions_.push_back(region);
  comm::ChannelEnd& added = ends_.emplace_back(end);
  added.exposed = true;
  added.operation = name_of(role_.operation);
  added.bytes = bytes_;
  added.region_count = 1;
  if (added.offers()) added.regions = &regions_.back();
  starts_.push_back({static_cast<std::int32_t>(starts_.size()), &regions_.back(), 1});
}

bool Exchange::strided() const {
  return role_.operation == NetworkOperation::alltoall && memory_.shape().strided;
}

void Exchange::start() {
  channels_->begin();
  if (!starts_.empty()) channels_->start(starts_.data(), static_cast<i64>(starts_.size()));
}

void Exchange::finish() {
  for (std::size_t i = 0; i < starts_.size(); ++i)
    static_cast<void>(channels_->wait(static_cast<std::int32_t>(i)));
  if (role_.group.empty() || role_.operation == NetworkOperation::hop) return;
  const i64 width = memory_.shape().run_bytes / bytes_of(DType::fp32),
            rows = bytes_ / memory_.shape().run_bytes;
  const kernels::ViewRegion all{{0, rows}, {0, 1}};
  const auto part = [&](std::byte* memory, i64 i) {
    return kernels::View(memory + i * bytes_, DType::fp32, 1, rows, {0, 1}, width);
  };
  if (role_.operation == NetworkOperation::alltoall && !strided())
    memory_.memory().copy_region(part(memory_.sent(), index_), all, part(memory_.received(), index_), all,
                                 WriteMode::overwrite);
  if (strided()) {
    const auto n = static_cast<i64>(role_.group.size());
    const kernels::View heads(memory_.sent(), DType::fp32, 1, rows, {0, n}, width);
    kernels::View mine = part(memory_.received(), index_);
    mine.heads = {index_, index_ + 1};
    memory_.memory().copy_region(heads, {{0, rows}, mine.heads}, mine, {{0, rows}, mine.heads},
                                 WriteMode::overwrite);
  }
  if (role_.operation != NetworkOperation::reduce_scatter) return;
  for (i64 i = 0; i < static_cast<i64>(role_.group.size()); ++i)
    if (i != index_)
      memory_.memory().copy_region(part(memory_.received(), i), all, part(memory_.received(), index_), all,
                                   WriteMode::accumulate);
}

}  // namespace usp::measure
