// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include "usp/comm/sockets.hpp"

#include <fmt/format.h>

#include <memory>
#include <vector>

namespace usp::capi {
namespace {

constexpr std::size_t first_options =
    offsetof(usp_comm_options, reserved) + sizeof(usp_comm_options::reserved);
constexpr std::size_t first_job = offsetof(usp_socket_job, context) + sizeof(usp_socket_job::context);
/// Longest wait that clocks count, in seconds.
constexpr double max_wait_s = 1e9;

usp_comm_options default_options() {
  usp_comm_options options{};
  options.size = sizeof options;
  options.watchdog_s = comm::CommOptions{}.watchdog_s;
  return options;
}

usp_socket_job default_job() {
  usp_socket_job job{};
  job.size = sizeof job;
  job.rank = -1;
  return job;
}

std::vector<int> list_of(const std::int32_t* ranks, std::int32_t count, int size) {
  require(count >= 1 && count <= size,
          fmt::format("count is {}; a group has at least one rank and at most the communicator's {}", count,
                      size));
  given(ranks, "ranks");
  return {ranks, ranks + count};
}

}  // namespace

comm::CommOptions options_of(const usp_comm_options* given_options) {
  const usp_comm_options own = given_options == nullptr
                                   ? default_options()
                                   : taken(given_options, first_options, default_options(), "options");
  require(
      own.watchdog_s > 0 && own.watchdog_s <= max_wait_s,
      fmt::format("options.watchdog_s is {}; it must be above 0 and at most {}", own.watchdog_s, max_wait_s));
  require(own.start_s >= 0 && own.start_s <= max_wait_s,
          fmt::format("options.start_s is {}; it must be 0 (as watchdog_s) to {}", own.start_s, max_wait_s));
  require(own.reserved == 0, "options.reserved must be 0");
  comm::CommOptions options;
  options.watchdog_s = own.watchdog_s;
  if (own.start_s > 0) options.start_s = own.start_s;
  options.trust_network = own.trust_network != 0;
  options.leave_s = own.watchdog_s;
  if (own.interrupted != nullptr)
    options.interrupted = [ask = own.interrupted, context = own.context] { return ask(context) != 0; };
  return options;
}

namespace {

comm::SocketJob socket_job_of(const usp_socket_job* given_job) {
  const usp_socket_job own = taken(given_job, first_job, default_job(), "job");
  require(own.ranks >= 1, fmt::format("job.ranks is {}; it must be 1 or more", own.ranks));
  require(own.rank >= 0 && own.rank < own.ranks,
          fmt::format("job.rank is {}; it must be 0 to {}", own.rank, own.ranks - 1));
  require(own.port >= 0 && own.port <= 65535, fmt::format("job.port is {}; ports are 0 to 65535", own.port));
  require(own.host != nullptr || own.one_host != 0,
          "job.host is null; give the host of rank 0, or one_host where all ranks are on this host");
  comm::SocketJob job;
  job.rank = own.rank;
  job.size = own.ranks;
  if (own.host != nullptr) job.host = own.host;
  job.port = own.port;
  job.digest = own.digest;
  if (own.secret != nullptr) job.secret = own.secret;
  job.one_host = own.one_host != 0;
  if (own.on_listening != nullptr)
    job.on_listening = [call = own.on_listening, context = own.context](int port) { call(context, port); };
  return job;
}

}  // namespace
}  // namespace usp::capi

using namespace usp::capi;

usp_status usp_comm_options_init(usp_comm_options* options, size_t size) {
  return guarded([&] { start(options, size, first_options, default_options(), "options"); });
}

usp_status usp_socket_job_init(usp_socket_job* job, size_t size) {
  return guarded([&] { start(job, size, first_job, default_job(), "job"); });
}

usp_status usp_comm_create_sockets(const usp_socket_job* job, const usp_comm_options* options,
                                   usp_comm** comm) {
  return guarded([&] {
    given(comm, "comm");
    const usp::comm::SocketJob own = socket_job_of(job);
    auto made = std::make_unique<usp_comm>();
    made->owned = usp::comm::make_socket_communicator(own, options_of(options));
    made->communicator = made->owned.get();
    *comm = made.release();
  });
}

usp_status usp_comm_create_launched(const usp_comm_options* options, usp_comm** comm) {
  return guarded([&] {
    given(comm, "comm");
    auto made = std::make_unique<usp_comm>();
    made->launched = std::make_unique<usp::comm::LaunchedJob>(options_of(options));
    made->communicator = &made->launched->world();
    *comm = made.release();
  });
}

usp_status usp_comm_group(usp_comm* comm, const int32_t* ranks, int32_t count, usp_comm** group) {
  return guarded([&] {
    usp::comm::Communicator& all = *given(comm, "comm").communicator;
    given(group, "group");
    const std::vector<int> members = list_of(ranks, count, all.size());
    auto made = std::make_unique<usp_comm>();
    made->owned = all.group(members);
    if (made->owned == nullptr && members.front() == all.rank())  // a group of this rank alone
      made->owned = usp::comm::make_serial_communicator();
    made->communicator = made->owned.get();
    made->job = &job_of(*comm);
    *group = made->owned == nullptr ? nullptr : made.release();
  });
}
