// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/comm/communicator.hpp"

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace usp::comm {

/// A process as a rank of a job, and where the ranks meet.
struct SocketJob {
  int rank = 0;
  int size = 1;
  std::string host;  ///< of rank 0: a name or a numeric address
  int port = 0;  ///< where rank 0 listens and the others connect; 0 on rank 0: a free one, see on_listening
  /// Equal on all ranks of a job; a connection with another one is refused.
  std::uint64_t digest = 0;
  /// A secret of the ranks of the job; empty: nothing. It never travels: both ends of every
  /// connection prove by HMAC-SHA256 over fresh random numbers that they know it.
  std::string secret{};
  bool one_host = false;  ///< all ranks are on this host, and meet on its loopback whatever `host` is
  /// Rank 0 of several calls it once with the port it listens at, before it waits for the others.
  std::function<void(int port)> on_listening{};
};

/// A job without a secret whose ranks would meet over a network (exit 5).
class OpenNetworkError : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// Whether torchrun, or a launcher with its variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), started
/// this process.
[[nodiscard]] bool torchrun_launched();

/// Throws UsageError where RANK and a WORLD_SIZE above 1 say that this is one rank of several, but not where
/// they meet: every process would run all ranks.
void check_rendezvous_variables();

/// What these variables say. torchrun's own store listens at MASTER_PORT, so rank 0 listens 1000 ports above
/// (below, where there are none), or at USP_MASTER_PORT where all ranks have that. The job is distinguished
/// from others by WORLD_SIZE, the port, TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT. Its secret is
/// USP_JOB_TOKEN (16 characters or more, 8 different ones or more), else a TORCHELASTIC_RUN_ID that can be
/// random: 32 hexadecimal digits or more, a UUID for one, with a letter and 8 different ones among them. A
/// name, torchrun's default run id "none" and the number of a Slurm job are no secrets. All ranks are on this
/// host where LOCAL_WORLD_SIZE is WORLD_SIZE. Throws UsageError for values that make no sense.
[[nodiscard]] SocketJob torchrun_job();

/// Note on --trust-network for this job: its ranks meet without a secret, or the flag is not needed since
/// they meet on loopback or have one.
[[nodiscard]] std::string trust_note(const SocketJob& job);

/// Processes as ranks, over TCP connections between all pairs; regions in host memory. Messages advance
/// within post, wait, test and progress only. Collective: waits at most options.start_s for all ranks,
/// refuses unauthenticated processes, other jobs and repeated ranks (EnvironmentError for them), and throws
/// CommunicationError naming the ranks that did not come. A job without a secret whose ranks meet beyond
/// loopback is refused (OpenNetworkError) unless options.trust_network. Rank 0 listens at the interface of
/// `host` alone, the others at the one by which they reach it. A process that ends is a CommunicationError of
/// all others. The end of the last communicator waits for the others to get there, options.leave_s at most
/// without a byte from them. The secret protects joining; later messages are neither encrypted nor
/// authenticated.
[[nodiscard]] std::unique_ptr<Communicator> make_socket_communicator(const SocketJob& job,
                                                                     const CommOptions& options);

/// For main programs: runs `body` as this rank of the job. Returns 0 when it returned on all ranks. When it
/// threw on any, prints one line per rank to stderr (its own error, or that of the rank that failed
/// first) and ends this process without returning; the exit code is that of the first error: 5 for faults
/// between ranks, else its ExitCode. What fails before the ranks have met is thrown. Collective.
int run_sockets(const SocketJob& job, const CommOptions& options,
                const std::function<void(Communicator&)>& body);

/// Within a catch of `error`, by which a rank fails before its run_sockets: prints it, meets the others all
/// the same, for at most 10 s, so that they end at once with its error instead of waiting for it, and ends
/// this process as run_sockets does.
[[noreturn]] void fail_before_rendezvous(const SocketJob& job, const CommOptions& options,
                                         const std::exception& error);

}  // namespace usp::comm
