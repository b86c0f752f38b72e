// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/compose.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/routes.hpp"
#include "usp/topology/synthetic.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <unistd.h>

namespace usp {
namespace {

const std::string data = USP_TEST_DATA;
const std::string h100_text = data + "/topo/01_h100_sxm_8gpu_12nic_tabs_truncated_nic_rows.txt";

topology::ClusterRequest from(const std::string& source) {
  topology::ClusterRequest request;
  request.source = source;
  return request;
}

/// A file that lives as long as this.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& text)
      : path((std::filesystem::temp_directory_path() /
              (std::string("usp_compose_") + ::testing::UnitTest::GetInstance()->current_test_info()->name() +
               "_" + std::to_string(::getpid())))
                 .string()) {
    write_file(path, text);
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path;
};

TEST(Compose, TextPlusCardHostsNicsFabric) {
  topology::ClusterRequest request = from(h100_text);
  request.device = "h100-sxm";
  request.nodes = 4;
  request.nic = "8x400G";
  request.fabric = "rail";
  const topology::Cluster cluster = topology::compose(request);
  EXPECT_EQ(cluster.devices.size(), 32u);
  EXPECT_DOUBLE_EQ(*cluster.domains.at(3).gb_s.value, 450);
  EXPECT_EQ(cluster.fabric.kind, topology::FabricKind::rail);
  EXPECT_EQ(cluster.calibration, "h100_sxm");
  EXPECT_EQ(cluster.nics.size(), 48u);  // the four storage NICs of each host stay, their rate unknown
  for (const topology::Device& device : cluster.devices) {
    ASSERT_EQ(device.nics.size(), 1u);
    EXPECT_DOUBLE_EQ(*cluster.nics[static_cast<std::size_t>(device.nics[0])].gb_s.value, 50);
  }
  EXPECT_EQ(cluster.devices[1].nics[0], 3);  // affinity of the text, not of the order
  EXPECT_FALSE(cluster.nics[1].gb_s.known());
  EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(cluster), "again"), cluster);
}

TEST(Compose, TextAloneNamesNoCard) {
  const topology::Cluster cluster = topology::compose(from(h100_text));
  EXPECT_TRUE(cluster.specs.at(0).name.empty());
  const topology::LinkTable table(cluster);
  std::vector<double> load(table.resources().size(), 0.0);
  table.add(0, 1, 1e9, load);
  try {
    (void)table.busiest_s(load);
    FAIL() << "an unknown bandwidth was used";
  } catch (const MissingValue& error) {
    EXPECT_NE(std::string(error.what()).find("--device"), std::string::npos) << error.what();
  }
}

TEST(Compose, ACardThatCannotHaveTheseLinksIsRefused) {
  topology::ClusterRequest request = from(h100_text);
  request.device = "a100";
  EXPECT_THROW((void)topology::compose(request), InvalidInput);  // 18 links against 12
  request.device = "h10";
  EXPECT_THROW((void)topology::compose(request), UsageError);
}

TEST(Compose, VisibleDevicesKeepTheOrderGiven) {
  topology::ClusterRequest request = from("node:2 numa:2 nvswitch gpu:4(a100) nic:2(200G)");
  request.devices = {3, 1, 0};
  const topology::Cluster cluster = topology::compose(request);
  ASSERT_EQ(cluster.devices.size(), 6u);
  EXPECT_EQ(cluster.devices[0].local, 3);
  EXPECT_EQ(cluster.devices[2].local, 0);
  EXPECT_EQ(cluster.devices[3].local, 3);
  EXPECT_EQ(cluster.devices[3].node, 1);
  EXPECT_EQ(cluster.devices[0].nics, std::vector<int>{1});
  EXPECT_EQ(cluster.domains.at(1).devices, (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(cluster.links.size(), 6u);
  request.devices = {4};
  EXPECT_THROW((void)topology::compose(request), UsageError);
  request.devices = {1, 1};
  EXPECT_THROW((void)topology::compose(request), UsageError);
}

TEST(Compose, NodesRepeatOrCut) {
  topology::ClusterRequest request = from("gb200-nvl72");
  request.nodes = 36;
  EXPECT_EQ(topology::compose(request).domains.size(), 2u);
  request.nodes = 4;
  const topology::Cluster part = topology::compose(request);
  EXPECT_EQ(part.devices.size(), 16u);
  EXPECT_EQ(part.domains.at(0).devices.size(), 16u);
  request.nodes = 20;
  EXPECT_THROW((void)topology::compose(request), UsageError);
  request.nodes = 0;
  EXPECT_THROW((void)topology::compose(request), UsageError);
}

TEST(Compose, NicForms) {
  topology::ClusterRequest request = from("gpu:8(h100) nvswitch");
  request.nic = "400G";
  EXPECT_THROW((void)topology::compose(request), UsageError);  // how many?
  request.nic = "4x400G";
  EXPECT_EQ(topology::compose(request).nics.size(), 4u);
  request.nic = "x400G";
  EXPECT_THROW((void)topology::compose(request), UsageError);
  request.nic = "8x400";
  EXPECT_THROW((void)topology::compose(request), UsageError);
  request.source = "dgx-h100";
  request.nic = "200G";
  EXPECT_DOUBLE_EQ(*topology::compose(request).nics.at(7).gb_s.value, 25);
}

TEST(Compose, SlurmNamesHostsAndLeaves) {
  const TemporaryFile slurm(
      "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=top Switches=s[0-1]\n");
  topology::ClusterRequest request = from("dgx-h100");
  request.slurm = slurm.path;
  request.oversubscription = 2;
  const topology::Cluster cluster = topology::compose(request);
  EXPECT_EQ(cluster.nodes.size(), 4u);
  EXPECT_EQ(cluster.nodes[2].name, "n2");
  EXPECT_EQ(cluster.fabric.leaves, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  request.nodes = 3;
  EXPECT_EQ(topology::compose(request).fabric.leaves, (std::vector<std::vector<int>>{{0, 1}, {2}}));
  request.nodes = 5;
  EXPECT_THROW((void)topology::compose(request), InvalidInput);
  EXPECT_EQ(topology::compose(from(slurm.path)).nodes.size(), 4u);
}

TEST(Compose, MeasuredCurves) {
  topology::ClusterRequest request = from("b200");
  request.curves = {data + "/nccl_tests/b200_8gpu_all_reduce.txt"};
  const topology::Cluster cluster = topology::compose(request);
  ASSERT_EQ(cluster.curves.size(), 1u);
  EXPECT_EQ(cluster.curves[0].collective, "all_reduce");
  EXPECT_EQ(cluster.curves[0].ranks, 8);
  EXPECT_EQ(cluster.curves[0].points.size(), 12u);
  EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(cluster), "again"), cluster);
  request.curves = {data + "/nccl_tests/h100_built_without_mpi_all_rank0.txt"};  // B087
  EXPECT_THROW((void)topology::compose(request), InvalidInput);
}

TEST(Compose, FormatsByContent) {
  for (const Word<topology::SourceFormat>& word : word_list<topology::SourceFormat>())
    EXPECT_EQ(parse_word<topology::SourceFormat>(word.text, "--format"), word.value);
  EXPECT_EQ(word_of(topology::detect_format("{}", "f")), "cluster");
  EXPECT_EQ(topology::detect_format("{}", "f"), topology::SourceFormat::cluster_json);
  EXPECT_EQ(topology::detect_format("<!-- c -->\n<system/>", "f"), topology::SourceFormat::nccl_xml);
  EXPECT_EQ(topology::detect_format(read_file(h100_text), "f"), topology::SourceFormat::nvidia_smi);
  EXPECT_EQ(topology::detect_format("gpu:8(h100) nvswitch\n", "f"), topology::SourceFormat::synthetic);
  EXPECT_EQ(topology::detect_format("SwitchName=a Nodes=b\n", "f"), topology::SourceFormat::slurm);
  for (const std::string& bad : {std::string(), std::string("hello"), std::string("GPU0 gpu:8"),
                                 read_file(data + "/nccl_tests/b200_8gpu_all_reduce.txt")})
    EXPECT_THROW((void)topology::detect_format(bad, "f"), InvalidInput) << bad.substr(0, 20);
  EXPECT_THROW((void)topology::compose(from("no-such-thing")), InvalidInput);
  EXPECT_THROW((void)topology::compose(from("")), UsageError);
}

TEST(Compose, PeerToPeerIsNotAssumed) {  // B085
  EXPECT_EQ(topology::compose(from("rtx-4090")).specs.at(0).pcie_p2p, false);
  EXPECT_EQ(topology::compose(from("l40s")).specs.at(0).pcie_p2p, std::nullopt);
  EXPECT_THROW((void)topology::compose(from(data + "/topo/26_p2p_matrix_ns.txt")), InvalidInput);
}

TEST(Compose, RatesFromTheCommandLine) {
  topology::ClusterRequest request = from("gpu:4(a100) nvlink:4");
  request.nvlink_gb_s = 90;
  request.pcie_gb_s = 20;
  const topology::Cluster cluster = topology::compose(request);
  EXPECT_DOUBLE_EQ(*cluster.links[0].gb_s.value, 30);
  EXPECT_DOUBLE_EQ(*cluster.nodes[0].pcie_gb_s.value, 20);
  request.source = "l40s";
  EXPECT_THROW((void)topology::compose(request), UsageError);
}

TEST(Compose, ADeviceListNamesEachOnce) {
  EXPECT_EQ(topology::parse_device_list("3, 1,0", "--devices"), (std::vector<int>{3, 1, 0}));
  for (const char* bad : {"", "0,,1", "0,1,0", "-1", "65536", "a", "0-3"})
    EXPECT_THROW(static_cast<void>(topology::parse_device_list(bad, "--devices")), UsageError) << bad;
}

/// Every host times every visible device times every device would take minutes here.
TEST(Compose, VisibleDevicesOfManyHostsAreFoundOnce) {
  topology::ClusterRequest request;
  request.source = "node:8192 gpu:8";
  request.devices = {7, 3, 0, 1, 2, 4, 5, 6};
  const topology::Cluster cluster = topology::compose(request);
  ASSERT_EQ(cluster.devices.size(), 65536U);
  EXPECT_EQ(cluster.devices.back().local, 6);
  request.devices = {8};
  EXPECT_THROW(static_cast<void>(topology::compose(request)), UsageError);
}

/// The note says what CUDA would show of the source's devices, in its order.
TEST(Compose, VisibleDevicesOfTheShellAreNamed) {
  const auto advice = [](const char* visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const topology::Cluster cluster = topology::compose(from(h100_text));
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (const std::string& note : cluster.notes)
      if (note.find("CUDA_VISIBLE_DEVICES") != std::string::npos) return note;
    return std::string();
  };
  for (const auto& [visible, expected] :
       {std::pair("3,1,0", "give --devices 3,1,0 to plan for these, in this order"),
        std::pair("0, 7", "give --devices 0,7 to plan"), std::pair("7,9,1", "CUDA stops at '9'"),
        std::pair("0,1,-1,2", "give --devices 0,1 to plan"), std::pair("", "would show none"),
        std::pair("1,1", "names device 1 twice"), std::pair("GPU-8932f937,GPU-1", "beside these UUIDs")})
    EXPECT_NE(advice(visible).find(expected), std::string::npos) << visible << ": " << advice(visible);
}

}  // namespace
}  // namespace usp
