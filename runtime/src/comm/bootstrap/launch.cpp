// SPDX-License-Identifier: Apache-2.0
#include "job_secret.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/env.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"

#include <fmt/format.h>

#include <charconv>

namespace usp::comm {
namespace {

constexpr int max_port_number = 65535;
/// From torchrun's store to rank 0; far enough for jobs whose ports were counted up.
constexpr int port_distance = 1000;

/// Whether torchrun itself started this process. One torchrun per host is often started by srun or mpirun,
/// whose variables the ranks inherit.
[[nodiscard]] bool by_torchrun() {
  return environment("TORCHELASTIC_RUN_ID").has_value();
}

[[nodiscard]] int number_of(const char* name, int least, int greatest) {
  const std::string text = environment(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > greatest)
    throw UsageError(fmt::format(
        "{} is '{}', not a number from {} to {}; start the ranks with torchrun, or set the same variables",
        name, text, least, greatest));
  return value;
}

/// What only ranks of this job know; empty where nothing is such.
[[nodiscard]] std::string secret_of_job() {
  if (const auto token = environment("USP_JOB_TOKEN")) {
    check_token(*token);
    return *token;
  }
  const std::string id = environment("TORCHELASTIC_RUN_ID").value_or("");
  return random_run_id(id) ? id : "";
}

/// The name of the job where it is no secret: what is told to everybody must not hold one.
[[nodiscard]] std::string public_run_id() {
  const std::string id = environment("TORCHELASTIC_RUN_ID").value_or("");
  return random_run_id(id) ? "" : id;
}

/// Rank 0 cannot listen at MASTER_PORT, where torchrun's store does.
[[nodiscard]] int port_of_rank_0(int master_port) {
  if (environment("USP_MASTER_PORT")) return number_of("USP_MASTER_PORT", 1, max_port_number);
  const int above = master_port + port_distance;
  return above <= max_port_number ? above : master_port - port_distance;
}

/// "[fd00::1]", as URLs and some launchers write an address of IPv6, without its brackets.
[[nodiscard]] std::string bare_host(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']' && host.find(':') != std::string::npos)
    return host.substr(1, host.size() - 2);
  return host;
}

/// A launcher below srun set all four variables, and they agree with the step: RANK is this task, WORLD_SIZE
/// the number of tasks. Where they disagree they are left over from another job.
[[nodiscard]] bool set_by_hand_in_step() {
  const auto rank = environment("RANK"), size = environment("WORLD_SIZE");
  return rank && size && environment("MASTER_ADDR") && environment("MASTER_PORT") &&
         rank == environment("SLURM_PROCID") && size == environment("SLURM_STEP_NUM_TASKS");
}

}  // namespace

bool mpi_launched() {
  if (by_torchrun()) return false;
  if (environment("OMPI_COMM_WORLD_SIZE")) return true;
  if (set_by_hand_in_step()) return false;
  // A step of one task is what an interactive shell of Slurm is: its ranks are threads.
  if (const auto tasks = environment("SLURM_STEP_NUM_TASKS")) return *tasks != "1";
  return environment("PMI_SIZE") || environment("PMIX_RANK");
}

bool torchrun_launched() {
  return environment("RANK") && environment("WORLD_SIZE") && environment("MASTER_ADDR") &&
         environment("MASTER_PORT") && !mpi_launched();
}

void check_rendezvous_variables() {
  const auto size = environment("WORLD_SIZE");
  if (!environment("RANK") || !size || *size == "1") return;
  throw UsageError(fmt::format(
      "RANK and WORLD_SIZE say that this process is one of {} ranks, but MASTER_ADDR and MASTER_PORT do not "
      "say where they meet; set all four as torchrun does, or unset them to run all ranks here",
      *size));
}

SocketJob torchrun_job() {
  SocketJob job;
  job.size = number_of("WORLD_SIZE", 1, 1 << 20);
  job.rank = number_of("RANK", 0, job.size - 1);
  job.host = bare_host(environment("MASTER_ADDR").value_or(""));
  const int master_port = number_of("MASTER_PORT", 1, max_port_number);
  job.port = port_of_rank_0(master_port);
  job.digest = Digest()
                   .add(job.size)
                   .add(master_port)
                   .bytes(public_run_id())
                   .add(0)
                   .bytes(environment("TORCHELASTIC_RESTART_COUNT").value_or(""))
                   .value();
  job.secret = secret_of_job();
  job.one_host = environment("LOCAL_WORLD_SIZE") && number_of("LOCAL_WORLD_SIZE", 1, job.size) == job.size;
  return job;
}

bool first_of_launch() {
  if (torchrun_launched()) return environment("RANK") == "0";
  if (!mpi_launched()) return true;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const auto rank = environment(name)) return *rank == "0";
  return true;
}

std::optional<int> local_rank() {
  constexpr int most = 1 << 20;
  if (torchrun_launched() && environment("LOCAL_RANK")) return number_of("LOCAL_RANK", 0, most);
  if (!mpi_launched()) return std::nullopt;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
    if (environment(name)) return number_of(name, 0, most);
  return std::nullopt;
}

}  // namespace usp::comm
