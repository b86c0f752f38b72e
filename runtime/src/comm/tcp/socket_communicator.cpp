// SPDX-License-Identifier: Apache-2.0
#include "socket_communicator.hpp"

#include "../failure/faults.hpp"

#include "usp/base/digest.hpp"

#include <algorithm>
#include <numeric>

namespace usp::comm {

SocketCommunicator::SocketCommunicator(std::shared_ptr<SocketMesh> mesh, std::vector<int> job_ranks,
                                       std::uint64_t context)
    : mesh_(std::move(mesh)), job_ranks_(std::move(job_ranks)), context_(context) {
  const auto mine = std::find(job_ranks_.begin(), job_ranks_.end(), mesh_->rank());
  rank_ = static_cast<int>(mine - job_ranks_.begin());
}

SocketCommunicator::~SocketCommunicator() {
  if (in_flight_ > 0)
    mesh_->broadcast_failure(unfinished_fault(mesh_->rank(), in_flight_), ExitCode::internal);
}

void SocketCommunicator::reserve(i64 messages, i64 /*regions*/) {
  if (messages <= reserved_) return;
  mesh_->reserve(messages - reserved_);
  reserved_ = messages;
}

void SocketCommunicator::start(const Message* messages, i64 count, Ticket* tickets) {
  mesh_->check();
  for (i64 i = 0; i < count; ++i) {
    ++in_flight_;
    tickets[i] = mesh_->post(messages[i], job_ranks_[static_cast<std::size_t>(messages[i].peer)], context_);
  }
  mesh_->flush();
}

i64 SocketCommunicator::finish(const SocketSlot& slot, Ticket ticket) {
  const i64 moved = slot.moved;
  mesh_->close(ticket);
  --in_flight_;
  return moved;
}

i64 SocketCommunicator::wait(Ticket ticket) {
  const SocketSlot& slot = mesh_->slot(ticket);
  mesh_->wait(slot);
  return finish(slot, ticket);
}

std::optional<i64> SocketCommunicator::test(Ticket ticket) {
  const SocketSlot& slot = mesh_->slot(ticket);
  if (slot.state == SocketSlot::State::done)
    mesh_->check();
  else
    mesh_->poll();
  if (slot.state != SocketSlot::State::done) return std::nullopt;
  return finish(slot, ticket);
}

std::unique_ptr<Communicator> SocketCommunicator::group(const std::vector<int>& ranks) {
  check_group(*this, ranks);
  const i64 sequence = groups_++;
  if (ranks.size() < 2 || std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  std::vector<int> job_ranks;
  for (const int rank : ranks) job_ranks.push_back(job_ranks_[static_cast<std::size_t>(rank)]);
  const std::uint64_t context = Digest().add(context_).add(sequence).value();  // all members count alike
  return std::make_unique<SocketCommunicator>(mesh_, std::move(job_ranks), context);
}

std::unique_ptr<SocketCommunicator> make_world(std::shared_ptr<SocketMesh> mesh) {
  std::vector<int> ranks(static_cast<std::size_t>(mesh->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<SocketCommunicator>(std::move(mesh), std::move(ranks), 0);
}

}  // namespace usp::comm
