// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/links.hpp"
#include "usp/schedule/expand.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/plan_inputs.hpp"
#include "usp/schedule/step_backends.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace usp {

/// One tick, as priced.
struct TickPrice {
  double compute_s = 0;
  double intra_node_s = 0;  ///< transfers due here that are still to be served, inside hosts
  double inter_node_s = 0;  ///< and between hosts
  double total_s = 0;       ///< length of the tick
};

struct PassPrice {
  double seconds = 0;
  double compute_s = 0;  ///< sum over ticks of the slowest rank's kernels
  double exposed_s = 0;  ///< seconds - compute_s: communication that shows, interference included
  double comm_s = 0;     ///< all transfers one after another
  double band = 0;       ///< relative half width, as Estimate
  std::uint32_t extrapolation = 0;
  double wire_bytes = 0;     ///< most bytes that one rank sends or receives
  bool spans_hosts = false;  ///< some transfer leaves its host and NVLink domain
  bool overlapped = true;    ///< false: running transfers and kernels one after another is faster
};

struct AttentionPrice {
  PassPrice forward;
  PassPrice backward;
  [[nodiscard]] double seconds() const { return forward.seconds + backward.seconds; }
};

/// Memory of one pass of an attention call, of the rank that holds most. Exact where rows are even and
/// nothing is pruned, a bound elsewhere.
struct LiveBytes {
  double total = 0;      ///< all buffers that the schedule binds, at the fullest tick; stages not counted
  double kv_copies = 0;  ///< of these, keys and values of other rows
  /// Buffers that live within the pass alone, stages included, at their fullest tick: the executor's
  /// workspace.
  double workspace = 0;
  double workspace_kv_copies = 0;  ///< of these, keys and values of other rows
  double saved = 0;                ///< forward: kept for backward beside home tensors
  double sums = 0;                 ///< backward: gradients of home tensors in the accumulator type
  bool reads_home_qkv = false;     ///< backward: reads q, k and v of the home layout
};

/// Bytes that every rank sends and receives in one pass, from the compact form. Exact.
struct Ledger {
  std::vector<i64> sent;
  std::vector<i64> received;
};
[[nodiscard]] Ledger ledger(const schedule::TokenMap& geometry, const schedule::CompactPass& pass);
/// The same by name of move, in the order in which names first occur.
struct NamedLedger {
  schedule::TransferName name;
  Ledger bytes;
};
[[nodiscard]] std::vector<NamedLedger> ledgers(const schedule::TokenMap& geometry,
                                               const schedule::CompactPass& pass);
[[nodiscard]] Ledger sum_of(const schedule::TokenMap& geometry, const std::vector<NamedLedger>& parts);
/// The same for one move.
void add_move(const schedule::TokenMap& geometry, const schedule::TransferOp& move, Ledger& ledger);

/// A ring whose blocks of keys and values travel as the latent that they are made of, and are expanded where
/// they arrive. No generator makes its schedule: what a plain ring moves and computes is scaled.
struct LatentRing {
  double share = 1;       ///< bytes of the latent over those of the heads' keys and values
  double forward_s = 0;   ///< expansion of one key row of another rank
  double backward_s = 0;  ///< again, with the gradients of latent and weights
};

struct MoveCost;

/// Prices attention calls of one shape and one batch of documents on one machine. Keeps what candidates
/// share: head splits, layouts, work profiles, link patterns; so a search reuses one pricer. `price` reads
/// the compact form of schedules, `price_explicit` their expanded form.
class AttentionPricer {
 public:
  /// `links` must outlive the pricer. Shape and documents must fit each other.
  AttentionPricer(LinkPricer& links, AttentionShape shape, Documents documents, ExecutionOptions options);
  /// @param documents may be shared by pricers of other heads
  AttentionPricer(LinkPricer& links, AttentionShape shape, std::shared_ptr<const Documents> documents,
                  ExecutionOptions options);
  ~AttentionPricer();
  AttentionPricer(const AttentionPricer&) = delete;
  AttentionPricer& operator=(const AttentionPricer&) = delete;

  /// Why a plan is too much work to price; empty: it is not.
  [[nodiscard]] std::string too_much_work(const AttentionPlan& plan, const Placement& placement) const;

  /// Generates the schedule of the plan and prices it. The plan's shape must equal the pricer's. Throws
  /// Infeasible where that is too much work.
  /// @param forward_ticks, backward_ticks filled when given
  [[nodiscard]] AttentionPrice price(const AttentionPlan& plan, const Placement& placement,
                                     std::vector<TickPrice>* forward_ticks = nullptr,
                                     std::vector<TickPrice>* backward_ticks = nullptr);

  /// Prices one pass from the explicit schedules of all ranks: the same rule on the other form. Slow; for
  /// tests and `usp explain`.
  [[nodiscard]] PassPrice price_explicit(const AttentionPlan& plan, const Placement& placement,
                                         const std::vector<schedule::RankSchedule>& ranks,
                                         std::vector<TickPrice>* ticks = nullptr);

  [[nodiscard]] LiveBytes live_bytes(const AttentionPlan& plan, Pass pass);

  /// The backend whose kernels price a pass: that of the plan, or what it leaves the pass to: by what all
  /// calls share, because the heads of some rank tear a KV group, or because some rank's every step is cut
  /// into too many pieces. Then that rank, the slowest, sets the pace.
  [[nodiscard]] Backend computing_backend(const AttentionPlan& plan, Pass pass);
  /// Steps of a pass by backend, each of up to `sampled_ranks` ranks spread over the mesh; none where even
  /// one is too much to expand.
  [[nodiscard]] const std::vector<schedule::StepBackends>& sampled_steps(const AttentionPlan& plan,
                                                                         Pass pass);
  static constexpr int sampled_ranks = 4;

  /// The schedule of a plan; valid until the next call.
  [[nodiscard]] const schedule::CompactSchedule& schedule(const AttentionPlan& plan);
  [[nodiscard]] const AttentionShape& shape() const { return shape_; }
  [[nodiscard]] const Documents& documents() const { return *documents_; }
  [[nodiscard]] const ExecutionOptions& options() const { return options_; }
  /// From here on blocks travel as latents.
  void ship_latent(const LatentRing& latent) { latent_ = latent; }
  [[nodiscard]] LinkPricer& links() { return links_; }
  /// Visible pairs per head, all rows.
  [[nodiscard]] double visible_pairs(const AttentionPlan& plan);

 private:
  struct Shared;
  struct Context;

  /// Fills schedule_ unless it holds this plan's.
  void lay_out(const AttentionPlan& plan, bool shared_kv, schedule::Binds binds);

  [[nodiscard]] std::shared_ptr<const schedule::MaskedBatch> batch_of(Band band);
  Context context_of(const AttentionPlan& plan, const Placement& placement);
  // Of a context, which they leave as it is.
  [[nodiscard]] Backend computing_backend(const AttentionPlan& plan, Pass pass, const Heads& heads);
  [[nodiscard]] const std::vector<schedule::StepBackends>& sampled_steps(const AttentionPlan& plan, Pass pass,
                                                                         const Heads& heads);
  [[nodiscard]] double move_bytes_per_peer(const Context& context, const schedule::TransferOp& move,
                                           const TransferPattern& pattern);
  [[nodiscard]] double own_bytes(const Context& context, const schedule::TransferOp& move,
                                 const TransferPattern& pattern);
  void weigh(const Context& context, const schedule::TransferOp& move, const TransferPattern& pattern,
             MoveCost& cost);
  PassPrice price_pass(const Context& context, Pass which, std::vector<TickPrice>* ticks);

  LinkPricer& links_;
  AttentionShape shape_;
  std::shared_ptr<const Documents> documents_;
  ExecutionOptions options_;
  std::optional<LatentRing> latent_;
  schedule::CompactSchedule schedule_;
  schedule::ScheduleKey schedule_key_;  ///< of schedule_
  bool has_binds_ = false;
  std::unique_ptr<Shared> shared_;
};

}  // namespace usp
