// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"
#include "usp/base/error.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"

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
    EXPECT_EQ(comm::mpi_launched(), start.launched) << start.how;
  }
}

TEST(Launch, KnowsTheFirstProcessOfTheJob) {
  const std::pair<std::map<std::string, std::string>, bool> starts[] = {
      {{}, true},
      {{{"RANK", "3"}}, true},  // no job: nothing says where its ranks meet
      {{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}, true},
      {{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}}, false},
      {{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}, false},
      {{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}, false},
      {{{"PMIX_RANK", "1"}}, false}};
  for (const auto& [variables, first] : starts) {
    const Environment environment(variables);
    EXPECT_EQ(comm::first_of_launch(), first);
  }
}

/// What torchrun sets for a rank, with changes.
std::map<std::string, std::string> torchrun_variables(std::map<std::string, std::string> changes = {}) {
  changes.insert({{"RANK", "3"},
                  {"WORLD_SIZE", "4"},
                  {"LOCAL_RANK", "1"},
                  {"MASTER_ADDR", "node0"},
                  {"MASTER_PORT", "29500"},
                  {"TORCHELASTIC_RUN_ID", "none"},
                  {"TORCHELASTIC_RESTART_COUNT", "0"}});
  return changes;
}

TEST(Launch, TorchrunIsKnownByItsVariables) {
  const Environment environment(torchrun_variables());
  EXPECT_TRUE(comm::torchrun_launched());
  EXPECT_FALSE(comm::mpi_launched());
  EXPECT_EQ(comm::local_rank(), 1);
  const comm::SocketJob job = comm::torchrun_job();
  EXPECT_EQ(job.rank, 3);
  EXPECT_FALSE(comm::first_of_launch());
  EXPECT_EQ(job.size, 4);
  EXPECT_EQ(job.host, "node0");
  EXPECT_EQ(job.port, 30500);
}

/// One torchrun per host is started by srun; its ranks inherit the variables of that.
TEST(Launch, TorchrunWinsOverWhatStartedIt) {
  const Environment environment(torchrun_variables({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_TRUE(comm::torchrun_launched());
  EXPECT_FALSE(comm::mpi_launched());
  EXPECT_EQ(comm::local_rank(), 1);
}

TEST(Launch, MpirunAndSrunWinOverVariablesLikeTorchruns) {
  for (const auto& [launcher, local] :
       std::map<std::string, std::string>{{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                                          {"SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}}) {
    auto variables = torchrun_variables({{launcher, "4"}, {local, "2"}});
    variables.erase("TORCHELASTIC_RUN_ID");
    const Environment environment(variables);
    EXPECT_TRUE(comm::mpi_launched());
    EXPECT_FALSE(comm::torchrun_launched());
    EXPECT_EQ(comm::local_rank(), 2);
  }
}

/// Launchers set RANK=$SLURM_PROCID and the others under srun: sockets, not an MPI without its launcher.
TEST(Launch, FourVariablesThatAgreeWithTheStepMeanSockets) {
  auto variables =
      torchrun_variables({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"PMIX_RANK", "3"}});
  variables.erase("TORCHELASTIC_RUN_ID");
  {
    const Environment environment(variables);
    EXPECT_TRUE(comm::torchrun_launched());
    EXPECT_FALSE(comm::mpi_launched());
    EXPECT_EQ(comm::torchrun_job().rank, 3);
    EXPECT_EQ(comm::local_rank(), 1);
  }
  const std::pair<const char*, const char*> leftovers[] = {{"RANK", "2"},
                                                           {"WORLD_SIZE", "8"},
                                                           {"MASTER_ADDR", nullptr},
                                                           {"MASTER_PORT", nullptr},
                                                           {"SLURM_PROCID", nullptr}};
  for (const auto& [name, value] : leftovers) {
    auto other = variables;
    if (value == nullptr)
      other.erase(name);
    else
      other[name] = value;
    const Environment environment(other);
    EXPECT_TRUE(comm::mpi_launched()) << name;
  }
  variables["OMPI_COMM_WORLD_SIZE"] = "4";
  const Environment environment(variables);
  EXPECT_TRUE(comm::mpi_launched()) << "mpirun inside the allocation";
}

TEST(Launch, BracketsOfAnIpv6AddressAreDropped) {
  for (const auto& [given, host] : std::map<std::string, std::string>{
           {"[fd00::1]", "fd00::1"}, {"fd00::1", "fd00::1"}, {"[::1]", "::1"}, {"[node]", "[node]"}}) {
    const Environment environment([&] {
      auto variables = torchrun_variables();
      variables["MASTER_ADDR"] = given;
      return variables;
    }());
    EXPECT_EQ(comm::torchrun_job().host, host);
  }
}

TEST(Launch, NobodyStartedThreads) {
  const Environment environment({{"LOCAL_RANK", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_FALSE(comm::torchrun_launched());
  EXPECT_EQ(comm::local_rank(), std::nullopt);
}

TEST(Launch, RankZeroListensBesideTheStoreOfTorchrun) {
  const auto port = [](const std::map<std::string, std::string>& changes) {
    const Environment environment(torchrun_variables(changes));
    return comm::torchrun_job().port;
  };
  EXPECT_EQ(port({{"MASTER_PORT", "64535"}}), 65535);
  EXPECT_EQ(port({{"MASTER_PORT", "64536"}}), 63536);
  EXPECT_EQ(port({{"USP_MASTER_PORT", "4711"}}), 4711);
}

TEST(Launch, JobsAreToldApart) {
  const auto digest = [](const std::map<std::string, std::string>& changes) {
    const Environment environment(torchrun_variables(changes));
    return comm::torchrun_job().digest;
  };
  EXPECT_EQ(digest({}), digest({{"RANK", "0"}, {"MASTER_ADDR", "10.0.0.1"}}));
  for (const char* name : {"WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_NE(digest({}), digest({{name, "77"}})) << name;
}

TEST(Launch, ASecretIsATokenOrARunIdThatCanBeRandom) {
  const std::string hex = "9f86d081884c7d659a2feaa0c55ad015", uuid = "3f2b8c1e-9d4a-4e6b-8f70-1a2b3c4d5e6f";
  const auto secret = [](const std::map<std::string, std::string>& changes) {
    const Environment environment(torchrun_variables(changes));
    return comm::torchrun_job().secret;
  };
  EXPECT_EQ(secret({{"USP_JOB_TOKEN", "0123456789abcdef"}, {"TORCHELASTIC_RUN_ID", hex}}),
            "0123456789abcdef");
  for (const std::string& id : {hex, uuid}) EXPECT_EQ(secret({{"TORCHELASTIC_RUN_ID", id}}), id);
  for (const std::string& id :
       {std::string("none"), std::string(), std::string("my-training-run-of-the-large-model"),
        std::string("4711"), std::string(32, '1'), std::string("20260101202601022026010320260104"),
        hex.substr(1), hex + "g"})
    EXPECT_EQ(secret({{"TORCHELASTIC_RUN_ID", id}}), "") << id;
  EXPECT_EQ(secret({{"SLURM_JOB_ID", hex}}), "");
}

TEST(Launch, ATokenThatIsNoSecretIsRefused) {
  for (const char* token : {"", "short", "aaaaaaaaaaaaaaaaaaaaaaaa"}) {
    const Environment environment(torchrun_variables({{"USP_JOB_TOKEN", token}}));
    try {
      (void)comm::torchrun_job();
      FAIL() << token;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("openssl rand -hex 32"), std::string::npos) << error.what();
    }
  }
}

/// What a person typed or a file's line end left is not counted as random, and is refused by name.
TEST(Launch, ATokenHasNoWhiteSpaceOrControlCharacters) {
  const std::string good = "c1b0d7aa5e2f49838c6d0e1f2a3b4c5d";
  for (const std::string& token : {std::string(16, ' ') + "abcdefgh", good + "\n", "\t" + good, good + "\x1b",
                                   good + "\x7f", good + " " + good}) {
    const Environment environment(torchrun_variables({{"USP_JOB_TOKEN", token}}));
    try {
      (void)comm::torchrun_job();
      FAIL() << token;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find("USP_JOB_TOKEN holds white space or control characters"), 0U)
          << error.what();
    }
  }
  const std::string letters = "schl\xc3\xbcssel-zum-gr\xc3\xbcnen-tor";
  const Environment environment(torchrun_variables({{"USP_JOB_TOKEN", letters}}));
  EXPECT_EQ(comm::torchrun_job().secret, letters);
}

/// The digest is told to everybody who listens.
TEST(Launch, ASecretRunIdIsNotPartOfTheDigest) {
  const auto job = [](const std::string& id) {
    const Environment environment(torchrun_variables({{"TORCHELASTIC_RUN_ID", id}}));
    return comm::torchrun_job();
  };
  EXPECT_EQ(job("9f86d081884c7d659a2feaa0c55ad015").digest,
            job("3f2b8c1e-9d4a-4e6b-8f70-1a2b3c4d5e6f").digest);
}

TEST(Launch, RanksOfOneHostAreKnownByTheirNumber) {
  for (const auto& [local, one_host] : std::map<std::string, bool>{{"4", true}, {"2", false}}) {
    const Environment environment(torchrun_variables({{"LOCAL_WORLD_SIZE", local}}));
    EXPECT_EQ(comm::torchrun_job().one_host, one_host);
  }
  const Environment environment(torchrun_variables());
  EXPECT_FALSE(comm::torchrun_job().one_host);
}

TEST(Launch, ValuesWithoutSenseAreRefusedByName) {
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"RANK", "4"}, {"WORLD_SIZE", "four"}, {"MASTER_PORT", "0"}, {"USP_MASTER_PORT", "65536"}}) {
    const Environment environment(torchrun_variables({{name, value}}));
    try {
      (void)comm::torchrun_job();
      FAIL() << name;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find(name + " is '" + value + "', not a number from "), 0U)
          << error.what();
    }
  }
}

TEST(Launch, AJobOfOtherSizeThanThePlanIsRefused) {
  const Environment environment(torchrun_variables());
  try {
    comm::run_ranks(2, {}, [](comm::Communicator&) {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("for 2 ranks, torchrun started 4"), std::string::npos)
        << error.what();
  }
}

TEST(Launch, RanksAreThreadsWhenNobodyStartedProcesses) {
  const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  std::string name;
  EXPECT_TRUE(comm::run_ranks(2, {}, [&](comm::Communicator& ranks) {
    if (ranks.rank() == 0) name = ranks.name();
  }));
  EXPECT_EQ(name, "threads");
}

TEST(Launch, ABuildWithoutMpiRefusesProcesses) {
  if (comm::mpi_available()) GTEST_SKIP() << "this build has MPI";
  const Environment environment({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  try {
    comm::run_ranks(2, {}, [](comm::Communicator&) {});
    FAIL() << "every process would run alone";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("this build has no MPI"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace usp
