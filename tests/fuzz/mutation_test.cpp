// SPDX-License-Identifier: Apache-2.0
// Every reader against damaged versions of every data file, with fixed seeds: what fuzzing finds in minutes
// on a machine with clang is kept from coming back here, in seconds and with any compiler.
#include "mutation.hpp"

#include "properties_json.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>

namespace usp::fuzz {
namespace {

struct Reader {
  const char* folder;
  std::function<bool(const std::string&)> property;
  std::size_t accepted;  ///< files of the folder, undamaged
};

const std::string slurm_file =
    "# comment\nSwitchName=s0 Nodes=cfc[01-16],a[1-3,7]\nSwitchName=s1 Nodes=b[01-02] LinkSpeed=100\n"
    "SwitchName=s2 \\\n  Nodes=r[1-2]n[0-3]\nSwitchName=core Switches=s[0-2]\n";

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() != ".gitkeep" && entry.path().filename() != ".gitkeep")
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) texts.push_back(read_file(path));
  return texts;
}

std::vector<std::string> files_of(const std::string& folder) {
  return files_below(std::string(USP_TEST_DATA) + "/" + folder);
}

/// The shipped clusters, and two in full as the reader of another format gives them.
std::vector<std::string> cluster_files() {
  std::vector<std::string> texts = files_below(std::string(USP_CONFIGS) + "/clusters");
  for (const char* name : {"/topo/05_azure_nc96_a100_pairs_4numa.txt", "/topo/20_ansi_underlined_header.txt"})
    texts.push_back(
        write_cluster_json(read_nvidia_smi_topo(read_file(USP_TEST_DATA + std::string(name)), name)));
  return texts;
}

void expect_survives(const std::string& text, const std::function<bool(const std::string&)>& property) {
  try {
    static_cast<void>(property(text));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\ninput:\n" << text;
  }
}

void mutate_all(const Reader& reader, const std::vector<std::string>& texts, int rounds) {
  std::size_t accepted = 0;
  std::mt19937_64 random(20240607);
  for (const std::string& text : texts) {
    accepted += reader.property(text) ? 1U : 0U;
    const std::size_t step = std::max<std::size_t>(1, text.size() / 400);
    for (std::size_t length = 0; length < text.size(); length += step)
      expect_survives(text.substr(0, length), reader.property);
    for (int round = 0; round < rounds; ++round)
      expect_survives(mutated(text, texts, random), reader.property);
  }
  EXPECT_EQ(accepted, reader.accepted) << reader.folder;
}

TEST(Mutation, NvidiaSmi) {
  mutate_all({"topo", nvidia_smi, 19}, files_of("topo"), 500);
}
TEST(Mutation, NcclXml) {
  mutate_all({"nccl_xml", nccl_xml, 5}, files_of("nccl_xml"), 1000);
}
TEST(Mutation, NcclTests) {
  mutate_all({"nccl_tests", nccl_tests, 4}, files_of("nccl_tests"), 2000);
}
TEST(Mutation, Slurm) {
  mutate_all({"slurm", slurm, 1}, {slurm_file}, 5000);
}

TEST(Mutation, ClusterJson) {
  const auto texts = cluster_files();
  mutate_all({"clusters", cluster_json, texts.size()}, texts, 200);
}
/// Refused are the three files with the keys of another tool.
TEST(Mutation, ModelConfig) {
  mutate_all({"hf_config", model_config, 16}, files_of("hf_config"), 200);
}

/// One of them was changed after it was written, which the property mends.
TEST(Mutation, PlanFile) {
  mutate_all({"plans", plan_file, 3}, files_of("plans"), 3000);
}

/// A damaged device row must never vanish: the property counts rows by itself and is seen to fail without
/// one.
TEST(Mutation, PropertyCountsRows) {
  EXPECT_EQ(row_like_lines("\tGPU0\tGPU1\nGPU0\t X \tNV4\n\x1b[1mGPU1\x1b[0m\tNV4\t X \n"), 2U);
  EXPECT_EQ(row_like_lines("GPU0 GPU1 CPU Affinity\nGPU7\nNIC0 X PIX\n"), 0U);
}

}  // namespace
}  // namespace usp::fuzz
