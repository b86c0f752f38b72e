// SPDX-License-Identifier: Apache-2.0
// The readers of whole files against damaged versions of every data file.
#include "properties_json.hpp"
#include "replay.hpp"

#include "usp/base/file.hpp"
#include "usp/base/json.hpp"

namespace usp::fuzz {
namespace {

/// @param accepted how many of the seeds, undamaged, are good input
void mutate(const Property& property, const std::vector<Seed>& seeds, std::size_t accepted, int rounds) {
  const auto taken = std::count_if(seeds.begin(), seeds.end(), [&](const Seed& seed) {
    SCOPED_TRACE(seed.name);
    try {
      return property(seed.content);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      return false;
    }
  });
  EXPECT_EQ(static_cast<std::size_t>(taken), accepted);
  mutate_all(property, seeds, rounds);
}

std::vector<Seed> data(const std::string& folder) {
  return seeds_of(std::string(USP_TEST_DATA) + "/" + folder);
}

/// The shipped clusters, and two in full as the reader of another format gives them.
std::vector<Seed> cluster_files() {
  std::vector<Seed> seeds = seeds_of(std::string(USP_CONFIGS) + "/clusters");
  for (const Seed& seed : data("topo"))
    if (seed.name.rfind("05_", 0) == 0 || seed.name.rfind("20_", 0) == 0)
      seeds.push_back(
          {seed.name, topology::write_cluster_json(topology::read_nvidia_smi_topo(seed.content, seed.name))});
  return seeds;
}

TEST(Mutation, NvidiaSmi) {
  mutate(nvidia_smi, data("topo"), 19, 500);
}
TEST(Mutation, NcclXml) {
  mutate(nccl_xml, data("nccl_xml"), 5, 1000);
}
TEST(Mutation, NcclTests) {
  mutate(nccl_tests, data("nccl_tests"), 4, 2000);
}
/// As launchers print them: with prefixes, stamps and colours in front of every line.
std::vector<Seed> launched(const std::vector<Seed>& seeds) {
  std::vector<Seed> result;
  for (const char* prefix : {"[1,0]<stdout>:", "12: ", "node-1: ", "2025-01-31T12:00:00Z ", "\x1b[1m"})
    for (const Seed& seed : seeds) {
      std::string text;
      for (const std::string& line : split_lines(seed.content)) text += prefix + line + "\n";
      result.push_back({seed.name + " behind " + prefix, text});
    }
  return result;
}

TEST(Mutation, MatricesOfLaunchers) {
  mutate(nvidia_smi, launched(data("topo")), 5 * 19, 40);
}
TEST(Mutation, NcclTestsOfLaunchers) {
  mutate(nccl_tests, launched(data("nccl_tests")), 5 * 4, 200);
}
TEST(Mutation, PeerAccess) {
  replay("peer_access", peer_access, 2000);
}
TEST(Mutation, Slurm) {
  replay("slurm", slurm, 2000);
}

TEST(Mutation, ClusterJson) {
  const auto seeds = cluster_files();
  mutate(cluster_json, seeds, seeds.size(), 200);
}
/// Refused are the three files with the keys of another tool.
TEST(Mutation, ModelConfig) {
  mutate(model_config, data("hf_config"), 16, 200);
}

TEST(Mutation, ModelFamilies) {
  const Json table = parse_json(read_file(std::string(USP_TEST_DATA) + "/model_families.json"), "families");
  std::vector<Seed> seeds;
  for (const Json& row : table) seeds.push_back({row["name"], row["config"].dump()});
  mutate(model_config, seeds, seeds.size(), 40);
}

TEST(Mutation, PlanRequest) {
  mutate(plan_request, data("plan_requests"), 3, 500);
}

TEST(Mutation, AttentionRequest) {
  mutate(attention_request, data("attention_requests"), 2, 500);
}

/// One of them was changed after it was written, which the property mends.
TEST(Mutation, PlanFile) {
  mutate(plan_file, data("plans"), 3, 3000);
}

/// A damaged device row must never vanish: the property counts rows by itself and is seen to fail without
/// one.
TEST(Mutation, PropertyCountsRows) {
  EXPECT_EQ(row_like_lines("\tGPU0\tGPU1\nGPU0\t X \tNV4\n\x1b[1mGPU1\x1b[0m\tNV4\t X \n"), 2U);
  EXPECT_EQ(row_like_lines("GPU0 GPU1 CPU Affinity\nGPU7\nNIC0 X PIX\n"), 0U);
  EXPECT_EQ(row_like_lines("[4mGPU0\xc2\xa0X\nGPU1 [NV4\n\x1b[1"), 1U);
}

}  // namespace
}  // namespace usp::fuzz
