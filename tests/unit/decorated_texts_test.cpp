// SPDX-License-Identifier: Apache-2.0
// Real outputs as launchers, terminals and web pages change them: read the same, with a note, or refused.
#include "reader_checks.hpp"

#include "usp/base/text.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/slurm.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace usp {
namespace {

using namespace test;
using Change = std::function<std::string(const std::string& line, long number)>;

std::string changed(const std::string& text, const Change& change) {
  std::string result;
  for_each_line(
      text, [&](long number, std::string_view line) { result += change(std::string(line), number) + "\n"; });
  return result;
}

struct Decoration {
  const char* name;
  Change change;
};

const std::vector<Decoration>& decorations() {
  static const std::vector<Decoration> list = {
      {"mpirun --tag-output", [](const std::string& l, long) { return "[1,0]<stdout>:" + l; }},
      {"prterun", [](const std::string& l, long) { return "[1,0]<stdout>: " + l; }},
      {"srun --label", [](const std::string& l, long) { return "0: " + l; }},
      {"srun --label of many", [](const std::string& l, long) { return " 00: " + l; }},
      {"pdsh", [](const std::string& l, long) { return "node-01.cluster: " + l; }},
      {"torchrun",
       [](const std::string& l, long) { return "[default0]:" + std::string(l.empty() ? "" : " ") + l; }},
      {"docker compose", [](const std::string& l, long) { return "worker-0  | " + l; }},
      {"kubectl logs --prefix", [](const std::string& l, long) { return "[pod/nccl-0/test] " + l; }},
      {"mail", [](const std::string& l, long) { return "> " + l; }},
      {"journal", [](const std::string& l,
                     long n) { return "2025-01-31T12:00:" + std::to_string(10 + n % 50) + ".123Z " + l; }},
      {"stamps in brackets", [](const std::string& l, long) { return "[2025-01-31 12:00:59,123] " + l; }},
      {"stamps before a label", [](const std::string& l, long) { return "2025-01-31 12:00:00 12: " + l; }},
      {"CRLF", [](const std::string& l, long) { return l + "\r"; }},
      {"byte order mark", [](const std::string& l, long n) { return (n == 1 ? "\xef\xbb\xbf" : "") + l; }},
      {"colours", [](const std::string& l, long) { return "\x1b[32m" + l + "\x1b[0m"; }},
      {"no-break spaces", [](const std::string& l, long) { return "\xc2\xa0" + l; }},
      {"a fence", [](const std::string& l, long n) { return (n == 1 ? "```text\n" : "") + l; }},
  };
  return list;
}

bool changes_nothing(const char* name) {
  return std::string(name) == "CRLF";
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(USP_TEST_DATA) + "/" + folder))
    texts.push_back(data(folder + "/" + entry.path().filename().string()));
  return texts;
}

/// What a reader makes of a text; empty where it refuses.
template <class Read>
auto outcome(const Read& read, const std::string& text) -> std::optional<decltype(read(text))> {
  try {
    return read(text);
  } catch (const InvalidInput&) {
    return std::nullopt;
  }
}

template <class Read, class Same>
void read_alike(const std::string& folder, const Read& read, const Same& same) {
  for (const std::string& text : files_of(folder)) {
    const auto plain = outcome(read, text);
    for (const Decoration& decoration : decorations()) {
      const auto decorated = outcome(read, changed(text, decoration.change));
      ASSERT_EQ(decorated.has_value(), plain.has_value()) << decoration.name << "\n" << text.substr(0, 300);
      if (!plain) continue;
      same(*plain, *decorated, decoration.name);
      if (changes_nothing(decoration.name)) continue;
      EXPECT_NE(decorated->notes, plain->notes) << decoration.name;
    }
  }
}

topology::Cluster matrix(const std::string& text) {
  return topology::read_nvidia_smi_topo(text, "f");
}
void same_cluster(const topology::Cluster& a, const topology::Cluster& b, const char* name) {
  EXPECT_EQ(a.links, b.links) << name;
  EXPECT_EQ(a.devices, b.devices) << name;
  EXPECT_EQ(a.nics, b.nics) << name;
}

TEST(DecoratedTexts, Matrices) {
  read_alike("topo", matrix, same_cluster);
}

TEST(DecoratedTexts, NcclXml) {
  read_alike(
      "nccl_xml", [](const std::string& text) { return topology::read_nccl_xml(text, "f"); }, same_cluster);
}

TEST(DecoratedTexts, NcclTests) {
  const auto read = [](const std::string& text) { return topology::read_nccl_tests(text, "f"); };
  const auto same = [](const topology::NcclTestsResult& a, const topology::NcclTestsResult& b,
                       const char* name) {
    EXPECT_EQ(a.operation, b.operation) << name;
    EXPECT_EQ(a.ranks, b.ranks) << name;
    ASSERT_EQ(a.rows.size(), b.rows.size()) << name;
    for (std::size_t i = 0; i < a.rows.size(); ++i) EXPECT_EQ(a.rows[i].size_bytes, b.rows[i].size_bytes);
    EXPECT_EQ(a.average_busbw_gb_s, b.average_busbw_gb_s) << name;
  };
  read_alike("nccl_tests", read, same);
}

TEST(DecoratedTexts, SlurmTopologies) {
  const std::string tree =
      "SwitchName=a Nodes=n[01-04]\nSwitchName=b Nodes=n[05-08]\nSwitchName=top Switches=a,b\n";
  for (const Decoration& decoration : decorations())
    EXPECT_EQ(topology::read_slurm_topology(changed(tree, decoration.change), "f").node_names.size(), 8U)
        << decoration.name;
}

TEST(DecoratedTexts, FormatsAreStillFound) {
  const std::string text = data("topo/02_h20_8gpu_nv18_nonic.txt"),
                    xml = data("nccl_xml/aws-p4d-24xl-topo.xml");
  for (const Decoration& decoration : decorations()) {
    EXPECT_EQ(topology::detect_format(changed(text, decoration.change), "f"),
              topology::SourceFormat::nvidia_smi)
        << decoration.name;
    EXPECT_EQ(topology::detect_format(changed(xml, decoration.change), "f"), topology::SourceFormat::nccl_xml)
        << decoration.name;
  }
}

TEST(DecoratedTexts, AMarkdownTableOfAMatrix) {
  const std::string table =
      "| | GPU0 | **GPU1** | mlx5\\_0 | CPU Affinity | NUMA Affinity |\n|---|:--:|---|---|---|---|\n"
      "| GPU0 | X | NV12 | PIX | 0-31 | 0 |\n| GPU1 | NV12 | X | SYS | | 1 |\n| mlx5\\_0 | PIX | SYS | X | | "
      "|\n";
  const topology::Cluster cluster = matrix(table);
  ASSERT_EQ(cluster.devices.size(), 2U);
  EXPECT_EQ(cluster.links[0].lanes, 12);
  EXPECT_EQ(cluster.devices[1].numa, 1);
  EXPECT_EQ(cluster.nics[0].name, "mlx5_0");
  EXPECT_TRUE(notes_have(cluster.notes, "markdown table"));
}

TEST(DecoratedTexts, ATitleNumaIsNumaAffinity) {
  const topology::Cluster cluster =
      matrix("      GPU0 GPU1 CPU Affinity NUMA\nGPU0   X   SYS  0-51  0\nGPU1  SYS  X   52-103 1\n");
  EXPECT_EQ(cluster.devices[1].numa, 1);
  EXPECT_TRUE(notes_have(cluster.notes, "read as NUMA Affinity"));
}

/// Two hosts in one text, as pdsh gives them: never half of each.
TEST(DecoratedTexts, TwoHostsInterleavedAreRefused) {
  const std::string text = data("topo/02_h20_8gpu_nv18_nonic.txt");
  std::string two;
  for_each_line(text, [&](long, std::string_view line) {
    for (const char* host : {"a1: ", "a2: "}) two += host + std::string(line) + "\n";
  });
  EXPECT_THROW(static_cast<void>(matrix(two)), InvalidInput);
}

TEST(DecoratedTexts, AFewPrefixedLinesHideNoRow) {
  const std::string text = data("topo/02_h20_8gpu_nv18_nonic.txt");
  EXPECT_THROW(static_cast<void>(matrix(replaced(text, "\nGPU3", "\nlog: GPU3"))), InvalidInput);
  const std::string log = data("nccl_tests/b200_8gpu_all_reduce.txt");
  const std::size_t row = log.find("    16777216 ");
  for (const char* before : {"NCCL INFO ", "# ", "x"})
    EXPECT_THROW(
        static_cast<void>(topology::read_nccl_tests(log.substr(0, row) + before + log.substr(row), "f")),
        InvalidInput)
        << before;
}

TEST(DecoratedTexts, Utf16IsNamed) {
  try {
    static_cast<void>(matrix(std::string("\xff\xfeG\0P\0", 6)));
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("UTF-16"), std::string::npos);
  }
}

constexpr const char* head =
    "# Collective test starting: alltoall_perf\n#  Rank  0 Pid  7 on h device  0 [0] A\n"
    "#  Rank  1 Pid  7 on h device  1 [1] A\n";

TEST(NcclTestsAsTheyAre, BlankColumns) {
  const std::string columns =
      "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
  for (const char* row : {" 1024 128 float 10.00 0.10 0.05 0 10.00 0.10 0.05 N/A\n",
                          " 1024 128 float -1 10.00 0.10 0.05 0 10.00 0.10 0.05 N/A\n"}) {
    const topology::NcclTestsResult r = topology::read_nccl_tests(head + columns + row, "f");
    ASSERT_EQ(r.rows.size(), 1U) << row;
    EXPECT_EQ(r.rows[0].redop, "");
    EXPECT_EQ(r.rows[0].root, -1);
    EXPECT_DOUBLE_EQ(r.rows[0].out_of_place->time_us, 10);
    EXPECT_TRUE(notes_have(r.notes, "blank"));
  }
  // A value that is lost elsewhere is no blank column.
  for (const char* row : {" 1024 128 float none -1 10.00 0.10 0.05 0 10.00 0.10 0.05\n",
                          " 1024 128 float 0.10 0.05 0 10.00 0.10 0.05 N/A\n"})
    EXPECT_THROW(static_cast<void>(topology::read_nccl_tests(head + columns + row, "f")), InvalidInput)
        << row;
}

TEST(NcclTestsAsTheyAre, TimeStampsBeforeAndBehindRows) {
  const std::string columns = "#  size count type redop root time algbw busbw #wrong\n";
  const std::string row = "1024 128 float none -1 10.00 0.10 0.05 0";
  for (const std::string& stamped : {"2025-01-31 12:00:00 " + row, row + " 2025-01-31 12:00:00"}) {
    const topology::NcclTestsResult r = topology::read_nccl_tests(head + columns + stamped + "\n", "f");
    EXPECT_EQ(r.rows.size(), 1U);
    EXPECT_TRUE(notes_have(r.notes, "time stamps"));
  }
}

TEST(NcclTestsAsTheyAre, RepeatedSizesAreSamplesOfOnePoint) {
  std::string text = std::string(head) + "#  size count type redop root time algbw busbw #wrong\n";
  for (const char* time : {"10.00 0.10", "14.00 0.07", "12.00 0.09"})
    for (const char* size : {"1024 128", "2048 256"})
      text += std::string(size) + " float none -1 " + (size[0] == '1' ? time : "20.00 0.10") + " 0.05 0\n";
  const topology::NcclTestsResult r = topology::read_nccl_tests(text, "f");
  EXPECT_EQ(r.rows.size(), 6U);
  EXPECT_TRUE(notes_have(r.notes, "ran 3 times"));
  const std::string path = (std::filesystem::temp_directory_path() / "usp_repeated_sizes.txt").string();
  std::ofstream(path) << text;
  topology::ClusterRequest request;
  request.source = "gpu:2(h100)";
  request.curves = {path};
  const topology::Cluster cluster = topology::compose(request);
  std::filesystem::remove(path);
  ASSERT_EQ(cluster.curves.size(), 1U);
  ASSERT_EQ(cluster.curves[0].points.size(), 2U);
  EXPECT_NEAR(cluster.curves[0].points[0].time_s, 12e-6, 1e-12) << "the median";
}

TEST(NcclTestsAsTheyAre, CutNumbersAreSeen) {
  const std::string columns = "#  size count type redop root time algbw busbw #wrong\n";
  for (const char* row :
       {"24 128 float none -1 10.00 0.00 0.00 0\n", "1024 1280 float none -1 10.00 0.10 0.05 0\n"})
    EXPECT_THROW(static_cast<void>(topology::read_nccl_tests(head + columns + row, "f")), InvalidInput)
        << row;
}

TEST(SlurmAsItIs, WhatScontrolShows) {
  const topology::SlurmTopology t = topology::read_slurm_topology(
      "SwitchName=root Level=1 LinkSpeed=1 Nodes=gpu[001-008] Switches=leaf[1-2]\n"
      "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[001-004]\n"
      "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[005-008] Switches=\n",
      "f");
  EXPECT_EQ(t.node_names.size(), 8U);
  EXPECT_EQ(t.roots, std::vector<std::string>{"root"});
  EXPECT_EQ(topology::fabric_from(t).leaves.size(), 2U);
  // Without Level both are a contradiction, as in the file itself.
  EXPECT_THROW(static_cast<void>(topology::read_slurm_topology(
                   "SwitchName=root Nodes=a[1-2] Switches=s\nSwitchName=s Nodes=a[1-2]\n", "f")),
               InvalidInput);
}

TEST(SlurmAsItIs, Blocks) {
  for (const char* text :
       {"BlockName=b1 Nodes=tray[001-018]\nBlockName=b2 Nodes=tray[019-036]\nBlockSizes=18\n",
        "BlockName=b1 BlockIndex=0 Nodes=tray[001-018] BlockSize=18\n"
        "BlockName=b2 BlockIndex=1 Nodes=tray[019-036] BlockSize=18\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=tray[001-036] BlockSize=36\n"}) {
    const topology::SlurmTopology t = topology::read_slurm_topology(text, "f");
    EXPECT_EQ(t.blocks.size(), 2U);
    EXPECT_EQ(t.node_names.size(), 36U);
    EXPECT_EQ(topology::fabric_from(t).leaves[1].front(), 18);
  }
  for (const char* text :
       {"BlockName=b1 Nodes=a\nSwitchName=s Nodes=b\n", "BlockName=b1\n",
        "BlockName=b1 Nodes=a\nBlockName=b1 Nodes=b\n", "BlockName=b1 Nodes=a\nBlockName=b2 Nodes=a\n",
        "BlockName=b1 Switches=s\n", "BlockSizes=18\n"})
    EXPECT_THROW(static_cast<void>(topology::read_slurm_topology(text, "f")), InvalidInput) << text;
}

topology::Cluster with_slurm(const std::string& source, const std::string& text,
                             std::optional<int> nodes = {}) {
  const std::string path = (std::filesystem::temp_directory_path() / "usp_slurm_as_it_is.conf").string();
  std::ofstream(path) << text;
  topology::ClusterRequest request;
  request.source = source;
  request.slurm = path;
  request.nodes = nodes;
  const topology::Cluster cluster = topology::compose(request);
  std::filesystem::remove(path);
  return cluster;
}

TEST(SlurmAsItIs, NoClusterSpansTwoRoots) {
  const char* text = "SwitchName=a1 Nodes=gpu[001-002]\nSwitchName=b1 Nodes=gpu[101-103]\n";
  const char* host = "nvswitch gpu:8(h100) nic:8(400G)";
  const topology::Cluster cluster = with_slurm(host, text);
  EXPECT_EQ(cluster.nodes.size(), 3U) << "the larger one";
  EXPECT_EQ(cluster.nodes[0].name, "gpu101");
  EXPECT_TRUE(notes_have(cluster.notes, "no job across"));
  EXPECT_EQ(with_slurm(host, text, 2).nodes[0].name, "gpu001") << "the first that is large enough";
  EXPECT_THROW(static_cast<void>(with_slurm(host, text, 4)), InvalidInput);
}

TEST(SlurmAsItIs, TheTraysOfABlockShareNvlink) {
  const topology::Cluster cluster = with_slurm("nvswitch gpu:4(gb200) nic:4(400G)",
                                               "BlockName=b1 Nodes=t[1-2]\nBlockName=b2 Nodes=t[3-4]\n");
  ASSERT_EQ(cluster.domains.size(), 2U);
  EXPECT_EQ(cluster.domains[0].devices.size(), 8U);
  EXPECT_TRUE(cluster.domains[1].switched);
  const topology::Cluster other =
      with_slurm("nvswitch gpu:8(h100) nic:8(400G)", "BlockName=b1 Nodes=t[1-2]\n");
  EXPECT_EQ(other.domains.size(), 2U) << "one per host";
}

TEST(CardsAsTheyAre, TwoGenerationsInOneFileAreNotOneCard) {
  const std::string xml = data("nccl_xml/azure-ndv4-topo.xml");
  const char* two =
      R"(<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
      <pci busid="0000:0b:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80" rank="0" gdr="1"/></pci>
      <pci busid="0000:0c:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="90" rank="1" gdr="1"/></pci>
      </cpu></system>)";
  const topology::Cluster cluster = topology::read_nccl_xml(two, "f");
  EXPECT_EQ(cluster.specs.size(), 2U);
  EXPECT_NE(cluster.spec_of_device[0], cluster.spec_of_device[1]);
  topology::ClusterRequest request;
  request.source = "two.xml";
  request.text = two;
  request.device = "h100-pcie";
  EXPECT_THROW(static_cast<void>(topology::compose(request)), InvalidInput);
  request.devices = {1};
  EXPECT_EQ(topology::compose(request).devices.size(), 1U);
}

TEST(CardsAsTheyAre, AMatrixOfPcieAloneForACardWithNvlinkSaysSo) {
  topology::ClusterRequest request;
  request.source = "mp.txt";
  request.text = "      GPU0 GPU1 CPU Affinity\nGPU0   X   SYS  0-51\nGPU1  SYS  X   52-103\n";
  request.device = "h100-sxm";
  EXPECT_TRUE(notes_have(topology::compose(request).notes, "topo -mp"));
  request.device = "l40s";
  EXPECT_FALSE(notes_have(topology::compose(request).notes, "topo -mp"));
}

TEST(CardsAsTheyAre, TheDeviceWithTheFewestLanesBoundsItsDomain) {
  std::string text = "      GPU0 GPU1 GPU2\nGPU0   X   NV18  NV16\nGPU1  NV18  X   NV16\nGPU2 NV16 NV16 X\n";
  topology::ClusterRequest request;
  request.text = text;
  request.source = "fewer.txt";
  request.device = "h100-sxm";
  const topology::Cluster cluster = topology::compose(request);
  ASSERT_EQ(cluster.domains.size(), 1U);
  ASSERT_TRUE(cluster.domains[0].switched);
  EXPECT_NEAR(*cluster.domains[0].gb_s.value, 16 * 25.0, 1);
}

}  // namespace
}  // namespace usp
