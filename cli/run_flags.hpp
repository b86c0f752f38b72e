// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flag_group.hpp"

#include "usp/comm/ranks.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/runtime/devices.hpp"
#include "usp/runtime/run_request.hpp"
#include "usp/schedule/plan_file.hpp"

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace usp::cli {

/// The flags of every verb that reads a plan file: one layer, for the plan's documents or others.
struct PlanFileFlags {
  std::string file;
  std::size_t layer = 0;
  std::vector<i64> documents;  ///< empty: those of the plan
};
void add_plan_file_flags(const Verb& verb, PlanFileFlags& flags);

/// The flags of every verb whose ranks meet.
struct CommFlags {
  std::optional<double> watchdog_s;  ///< that of CommOptions
  bool trust_network = false;
};
void add_comm_flags(const Verb& verb, CommFlags& flags, const std::string& watchdog_note);
/// How the ranks meet, by the flags alone.
[[nodiscard]] comm::CommOptions comm_options(const CommFlags& flags);
/// Throws UsageError for --trust-network where no launcher of processes over TCP makes it effective; else
/// what it means for the job, for people.
[[nodiscard]] std::string trust_network_note();

/// The flags of every verb that executes a plan.
struct RunFlags {
  PlanFileFlags plan;
  std::optional<std::uint64_t> seed;  ///< 0
  std::string kernel;
  std::optional<RunOn> device;  ///< empty: that of the plan's backend
  bool gpu = false;             ///< of a verb that has --gpu
  std::optional<Transport> ulysses_transport, ring_transport;
  bool deterministic = false;
  std::vector<int> devices;
  CommFlags comm;
  bool forward_only = false;
};
void add_run_flags(const Verb& verb, RunFlags& flags);

[[nodiscard]] inline comm::CommOptions comm_options(const RunFlags& flags) {
  return comm_options(flags.comm);
}

/// Work of a rank before the rendezvous; a failure is reported to the ranks that wait.
template <class F>
auto before_meeting(const RunFlags& flags, const F& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    comm::notify_other_ranks(comm_options(flags), error);
    throw;
  }
}

/// One layer of a plan file, ready to run.
struct LoadedCall {
  std::string file_digest;  ///< of the plan file, before flags changed its backend
  PlanFile file;
  AttentionPlan plan;
  Documents documents;
  RunOptions options;
  std::string note;          ///< for people, before the run
  std::string network_note;  ///< of --trust-network, the same
};

/// What the flags ask of a call, for the echo in its JSON.
[[nodiscard]] RunRequest run_request(const RunFlags& flags, const LoadedCall& call);

/// Throws UsageError naming the flag, InvalidInput for a file that is no plan or a batch beyond its capacity,
/// EnvironmentError where --device needs a GPU and there is none.
[[nodiscard]] LoadedCall load_call(const RunFlags& flags);

}  // namespace usp::cli
