// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/batch.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp {
namespace {

[[nodiscard]] std::uint64_t digest_of(const Documents& documents, const Mesh& mesh) {
  return Digest().add(digest(documents)).add(mesh.ring_outer).add(mesh.ring_inner).add(mesh.ulysses).value();
}

/// Self attention within chunks of the batch's documents.
[[nodiscard]] Documents chunked(const Documents& documents, i64 chunk_tokens) {
  if (documents.cu_q != documents.cu_k)
    throw UsageError(
        "a chunked layer cuts documents of self attention only; give it a batch whose queries "
        "and keys are the same tokens");
  std::vector<i64> lengths;
  for (std::size_t i = 1; i < documents.cu_q.size(); ++i)
    lengths.push_back(documents.cu_q[i] - documents.cu_q[i - 1]);
  return chunked_documents(lengths, chunk_tokens);
}

}  // namespace

Batch::Batch(Documents documents, const Mesh& mesh, int rank, schedule::PeerReach reach)
    : documents_(std::move(documents)),
      mesh_(mesh),
      rank_(rank),
      reach_(reach),
      digest_(digest_of(documents_, mesh)) {}

std::shared_ptr<const Batch> Batch::derive(const Documents& parts) const {
  if (!(parts.cu_q.back() == documents_.cu_q.back() && parts.cu_k.back() == documents_.cu_k.back()))
    throw InvalidInput({"batch", 0, "cu_seqlens"},
                       fmt::format("parts hold {} tokens, the batch {}; cut the documents of the batch",
                                   parts.cu_q.back(), documents_.cu_q.back()));
  if (!std::includes(parts.cu_q.begin(), parts.cu_q.end(), documents_.cu_q.begin(), documents_.cu_q.end()))
    throw InvalidInput({"batch", 0, "cu_seqlens"},
                       "a part crosses the border of a document; end one at every document's end");
  return std::make_shared<const Batch>(parts, mesh_, rank_, reach_);
}

std::shared_ptr<const Prepared> Batch::prepare(const AttentionPlan& plan) const {
  return prepare(plan, 0);
}

std::shared_ptr<const Prepared> Batch::prepare(const PlanLayer& layer) const {
  return prepare(layer.plan, layer.chunk_tokens);
}

std::shared_ptr<const Prepared> Batch::prepare(const AttentionPlan& plan, i64 chunk_tokens) const {
  if (!(plan.mesh == mesh_))
    throw UsageError(
        fmt::format("the plan is for ring {} x ulysses {}, the batch for ring {} x ulysses {}; "
                    "make the batch with the plan's mesh",
                    plan.mesh.ring(), plan.mesh.ulysses, mesh_.ring(), mesh_.ulysses));
  const std::uint64_t key = Digest().add(usp::digest(plan)).add(chunk_tokens).value();
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Prepared>& entry = prepared_[key];
  if (entry == nullptr)
    entry = std::make_shared<const Prepared>(
        plan, chunk_tokens > 0 ? chunked(documents_, chunk_tokens) : documents_, rank_, reach_);
  return entry;
}

Batches::Batches(comm::Communicator& control, const Mesh& mesh, schedule::PeerReach reach)
    : control_(control), mesh_(mesh), reach_(reach) {
  check_mesh(mesh);
  if (control.size() != mesh.size())
    throw UsageError(fmt::format("the mesh has {} ranks, the communicator {}; give one of the mesh's ranks",
                                 mesh.size(), control.size()));
}

void Batches::agree(const char* name, std::uint64_t value) {
  comm::agree(control_, {{name, value}});
}

std::shared_ptr<const Batch> Batches::get(const Documents& documents, std::uint64_t dropout_seed) {
  const std::uint64_t key = digest_of(documents, mesh_);
  comm::agree(control_, {{"batch", key}, {"dropout_seed", dropout_seed}});
  const auto known =
      std::find_if(recent_.begin(), recent_.end(), [&](const auto& batch) { return batch->digest() == key; });
  if (known != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, known);
    return recent_.front();
  }
  recent_.push_front(std::make_shared<const Batch>(documents, mesh_, control_.rank(), reach_));
  if (recent_.size() > kept) recent_.pop_back();
  return recent_.front();
}

}  // namespace usp
