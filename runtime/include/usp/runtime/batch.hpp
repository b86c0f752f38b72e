// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"
#include "usp/runtime/prepared.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/plan_file.hpp"

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace usp {

/// The documents of one step on one rank of a mesh, and what was prepared of them. All layers of a step, and
/// all its microbatches of equal documents, share one. Any thread may prepare from it.
class Batch {
 public:
  /// Local. Agreement among ranks is Batches::get's. `reach` as Prepared.
  Batch(Documents documents, const Mesh& mesh, int rank,
        schedule::PeerReach reach = schedule::PeerReach::all);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() = default;

  /// Local: parts of this batch's documents, over the same tokens, as a batch of its own. Throws InvalidInput
  /// for parts that cross a border of a document or hold another number of tokens.
  [[nodiscard]] std::shared_ptr<const Batch> derive(const Documents& parts) const;

  [[nodiscard]] const Documents& documents() const { return documents_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

  /// Of a plan for this mesh: made by the first call, shared by the others. Local. Throws UsageError for a
  /// plan of another mesh, InvalidInput where the documents exceed the plan or do not fit it.
  [[nodiscard]] std::shared_ptr<const Prepared> prepare(const AttentionPlan& plan) const;
  /// The same of a layer of a plan file, whose attention may be within chunks of the documents.
  [[nodiscard]] std::shared_ptr<const Prepared> prepare(const PlanLayer& layer) const;

 private:
  [[nodiscard]] std::shared_ptr<const Prepared> prepare(const AttentionPlan& plan, i64 chunk_tokens) const;

  Documents documents_;
  Mesh mesh_;
  int rank_;
  schedule::PeerReach reach_;
  std::uint64_t digest_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, std::shared_ptr<const Prepared>> prepared_;  ///< by plan and chunk
};

/// Makes the batches of a rank and keeps the last ones, so that documents that repeat cost nothing anew.
/// `control` may be a communicator of its own, used by another thread than the one that runs layers: a
/// loader's thread then agrees on the next step's batch while this one computes. One call at a time.
class Batches {
 public:
  static constexpr int kept = 8;

  /// `control` has the mesh's ranks in order, and outlives this. `reach` is that of the data plane that
  /// will run the layers.
  Batches(comm::Communicator& control, const Mesh& mesh,
          schedule::PeerReach reach = schedule::PeerReach::all);

  /// Collective over `control`: every rank passes the same documents and seed. Throws DisagreementError on
  /// every rank where one differs, InvalidInput for documents out of range.
  [[nodiscard]] std::shared_ptr<const Batch> get(const Documents& documents, std::uint64_t dropout_seed = 0);

  /// Collective over `control`, in the same order with get(): compares a value that a batch depends on.
  /// Throws DisagreementError on every rank where one differs.
  void agree(const char* name, std::uint64_t value);

 private:
  comm::Communicator& control_;
  Mesh mesh_;
  schedule::PeerReach reach_;
  std::list<std::shared_ptr<const Batch>> recent_;  ///< the last used first
};

}  // namespace usp
