// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace usp {
namespace {

/// The variables that the project reads are as stated and nothing else is set.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
    given_ = values;
  }
  ~Environment() {
    clear();
    for (const auto& [name, value] : given_) unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void clear() {
    for (const EnvironmentVariable& variable : environment_variables())
      unsetenv(std::string(variable.name).c_str());
  }
  std::map<std::string, std::string> given_;
};

struct Start {
  const char* how;
  std::map<std::string, std::string> variables;
  bool launched;
};

TEST(Launch, KnowsWhoStartedTheProcess) {
  const Start starts[] = {
      {"by hand", {}, false},
      {"mpirun -n 4", {{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "2"}}, true},
      {"mpirun -n 1", {{"OMPI_COMM_WORLD_SIZE", "1"}}, true},
      {"srun -n 4", {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}}, true},
      {"srun -n 4 --mpi=pmi2",
       {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"PMI_SIZE", "4"}},
       true},
      {"srun -n 4 --mpi=pmix",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "0"}},
       true},
      {"srun --pty bash", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}, false},
      {"a batch script of 4 tasks",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}},
       false},
      {"mpiexec of MPICH", {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}, true},
      {"prterun", {{"PMIX_RANK", "1"}}, true}};
  for (const Start& start : starts) {
    const Environment environment(start.variables);
    EXPECT_EQ(mpi_launched(), start.launched) << start.how;
  }
}

TEST(Launch, RanksAreThreadsWhenNobodyStartedProcesses) {
  const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  std::string name;
  EXPECT_TRUE(run_ranks(2, {}, [&](Communicator& ranks) {
    if (ranks.rank() == 0) name = ranks.name();
  }));
  EXPECT_EQ(name, "threads");
}

TEST(Launch, ABuildWithoutMpiRefusesProcesses) {
  if (mpi_available()) GTEST_SKIP() << "this build has MPI";
  const Environment environment({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  try {
    run_ranks(2, {}, [](Communicator&) {});
    FAIL() << "every process would run alone";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("this build has no MPI"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace usp
