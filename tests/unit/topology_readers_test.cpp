// SPDX-License-Identifier: Apache-2.0
#include "reader_checks.hpp"

#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

using namespace test;
using Ints = std::vector<int>;

topology::Cluster topo(const std::string& name) {
  return topology::read_nvidia_smi_topo(data("topo/" + name), name);
}
topology::Cluster xml(const std::string& name) {
  return topology::read_nccl_xml(data("nccl_xml/" + name), name);
}

/// One letter per device pair a < b, in order: n NVLink, c C2C, i PIX, x PXB, h PHB, o NODE, s SYS.
std::string kinds(const topology::Cluster& cluster) {
  std::string text;
  for (const topology::Link& link : cluster.links) text += "ncgixhos?"[static_cast<std::size_t>(link.kind)];
  return text;
}
Ints lanes(const topology::Cluster& cluster) {
  Ints result;
  for (const topology::Link& link : cluster.links) result.push_back(link.lanes);
  return result;
}
/// -1 where unknown.
Ints numa(const topology::Cluster& cluster) {
  Ints result;
  for (const topology::Device& device : cluster.devices) result.push_back(device.numa.value_or(-1));
  return result;
}
std::vector<Ints> nearest(const topology::Cluster& cluster) {
  std::vector<Ints> result;
  for (const topology::Device& device : cluster.devices) result.push_back(device.nics);
  return result;
}
std::vector<Ints> domains(const topology::Cluster& cluster) {
  std::vector<Ints> result;
  for (const topology::NvlinkDomain& domain : cluster.domains) result.push_back(domain.devices);
  return result;
}
std::string names(const topology::Cluster& cluster) {
  std::string text;
  for (const topology::Nic& nic : cluster.nics) text += nic.name + ",";
  return text;
}

void expect_topo_refused(const std::string& text, long line, const std::string& token,
                         const std::string& words) {
  expect_refused([&] { static_cast<void>(topology::read_nvidia_smi_topo(text, "node.txt")); }, line, token,
                 words);
}
void expect_xml_refused(const std::string& text, long line, const std::string& token,
                        const std::string& words) {
  expect_refused([&] { static_cast<void>(topology::read_nccl_xml(text, "topo.xml")); }, line, token, words);
}

const Ints all_of_8{0, 1, 2, 3, 4, 5, 6, 7};
const std::vector<Ints> one_domain_of_8{all_of_8};

TEST(NvidiaSmi, TabsTwelveNicsMissingNicRows) {
  const topology::Cluster c = topo("01_h100_sxm_8gpu_12nic_tabs_truncated_nic_rows.txt");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(c.nics.size(), 12U);
  EXPECT_EQ(kinds(c), std::string(28, 'n'));
  EXPECT_EQ(lanes(c), Ints(28, 18));
  EXPECT_EQ(domains(c), one_domain_of_8);
  EXPECT_TRUE(c.domains[0].switched);
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {3}, {4}, {5}, {6}, {9}, {10}, {11}}));
  EXPECT_TRUE(notes_have(c.notes, "6 of 12 NICs have no row"));
  EXPECT_EQ(c.nodes.size(), 1U);
}

TEST(NvidiaSmi, NothingIsGuessed) {
  const topology::Cluster c = topo("01_h100_sxm_8gpu_12nic_tabs_truncated_nic_rows.txt");
  ASSERT_EQ(c.specs.size(), 1U);
  EXPECT_EQ(c.specs[0].name, "");
  EXPECT_FALSE(c.specs[0].bf16_tflops.known());
  EXPECT_FALSE(c.domains[0].gb_s.known());
  EXPECT_FALSE(c.nics[0].gb_s.known());
  for (const topology::Link& link : c.links) EXPECT_FALSE(link.gb_s.known() || link.latency_s.known());
}

TEST(NvidiaSmi, BlanksWithoutNics) {
  const topology::Cluster c = topo("02_h20_8gpu_nv18_nonic.txt");
  EXPECT_EQ(lanes(c), Ints(28, 18));
  EXPECT_TRUE(c.nics.empty());
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(c.domains[0].switched);
}

TEST(NvidiaSmi, LegendNamesNicsAndFarDevicesHaveNone) {
  const topology::Cluster c = topo("03_a100_8gpu_4numa_3nic_legend.txt");
  EXPECT_EQ(lanes(c), Ints(28, 12));
  EXPECT_TRUE(c.domains[0].switched);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,mlx5_2,");
  EXPECT_EQ(numa(c), (Ints{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {2}, {2}, {}, {}, {}, {}}));
  EXPECT_TRUE(notes_have(c.notes, "no NIC is nearer than another to device 4, 5, 6, 7"));
}

TEST(NvidiaSmi, CubeMeshIsOneDomainWithoutSwitch) {
  const topology::Cluster c = topo("04_v100_cubemesh_8gpu_mlx5cols.txt");
  EXPECT_EQ(kinds(c), "nnnsssnnnssnsnsnssnsssnnnnnn");
  EXPECT_EQ(lanes(c),
            (Ints{1, 2, 1, 0, 0, 0, 2, 1, 2, 0, 0, 2, 0, 2, 0, 1, 0, 0, 1, 0, 0, 0, 2, 2, 1, 1, 2, 1}));
  EXPECT_EQ(domains(c), one_domain_of_8);
  EXPECT_FALSE(c.domains[0].switched);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,");
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}}));
}

TEST(NvidiaSmi, BridgedPairs) {
  const topology::Cluster c = topo("05_azure_nc96_a100_pairs_4numa.txt");
  EXPECT_EQ(kinds(c), "nssssn");
  EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1}, {2, 3}}));
  EXPECT_FALSE(c.domains[0].switched);
  EXPECT_EQ(numa(c), (Ints{0, 1, 2, 3}));
}

TEST(NvidiaSmi, DirectCliqueFitsOneDevice) {
  for (const char* name : {"06_a100_4gpu_nv4_4nic_pxb.txt", "27_h200_nvl_nv6_handcopied_arrows.txt"}) {
    const topology::Cluster c = topo(name);
    EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1, 2, 3}})) << name;
    EXPECT_FALSE(c.domains[0].switched) << name;
    EXPECT_TRUE(notes_have(c.notes, "read as direct links")) << name;
  }
  const topology::Cluster a100 = topo("06_a100_4gpu_nv4_4nic_pxb.txt");
  EXPECT_EQ(lanes(a100), Ints(6, 4));
  EXPECT_EQ(nearest(a100), (std::vector<Ints>{{0}, {1}, {2}, {3}}));
  const topology::Cluster h200 = topo("27_h200_nvl_nv6_handcopied_arrows.txt");
  EXPECT_EQ(lanes(h200), Ints(6, 6));
  EXPECT_TRUE(notes_have(h200.notes, "line 5 ignored: '<-- GPU 3 talks to 2 via NVLink'"));
}

TEST(NvidiaSmi, NicsAllAlikeGiveNoAffinity) {
  const topology::Cluster tray = topo("09_gb200_tray_all_nic_sys_tabs.txt");
  EXPECT_EQ(tray.nics.size(), 6U);
  EXPECT_EQ(nearest(tray), (std::vector<Ints>{{}, {}, {}, {}}));
  EXPECT_EQ(numa(tray), (Ints{-1, -1, -1, -1}));
  EXPECT_TRUE(notes_have(tray.notes, "same distance from every device"));
  const topology::Cluster vm = topo("15_4xh100_vm_flat_nic_phb.txt");
  EXPECT_EQ(lanes(vm), Ints(6, 18));
  EXPECT_TRUE(vm.domains[0].switched);
  EXPECT_EQ(names(vm), ",");
  EXPECT_EQ(nearest(vm), (std::vector<Ints>{{}, {}, {}, {}}));
  EXPECT_TRUE(notes_have(vm.notes, "hypervisor"));
}

TEST(NvidiaSmi, CommentsBehindRowsAreNotedNotUsed) {
  const topology::Cluster c = topo("11_mixed_sxm_pcie_trailing_comment.txt");
  EXPECT_EQ(kinds(c), "nssssi");
  EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1}}));
  EXPECT_EQ(c.devices[2].nvlink_domain, -1);
  EXPECT_EQ(numa(c), (Ints{-1, -1, -1, -1}));
  EXPECT_TRUE(notes_have(c.notes, "line 4 ignored: '\xe2\x86\x90 NUMA 1'"));
}

TEST(NvidiaSmi, PcieMachines) {
  EXPECT_EQ(kinds(topo("13_8xl4_phb_sys.txt")), "hhhsssshhsssshsssssssshhhhhh");
  const topology::Cluster c = topo("14_8gpu_pcie_node_sys_tabs.txt");
  EXPECT_EQ(kinds(c), "ooossssoossssossssssssoooooo");
  EXPECT_TRUE(c.domains.empty());
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(NvidiaSmi, SmallMachines) {
  const topology::Cluster one = topo("16_single_gpu_tabs.txt");
  EXPECT_EQ(one.devices.size(), 1U);
  EXPECT_TRUE(one.links.empty());
  EXPECT_EQ(numa(one), Ints{0});
  const topology::Cluster two = topo("17_2x3090_nv4_tabs.txt");
  EXPECT_EQ(lanes(two), Ints{4});
  EXPECT_FALSE(two.domains[0].switched);
}

TEST(NvidiaSmi, WrappedHeader) {
  const topology::Cluster c = topo("19_wrapped_header.txt");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,");
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {1}, {0, 1}, {0, 1}, {}, {}, {}, {}}));
}

TEST(NvidiaSmi, AnsiRowOrderAndPreamble) {
  const topology::Cluster ansi = topo("20_ansi_underlined_header.txt");
  EXPECT_EQ(nearest(ansi), (std::vector<Ints>{{0}, {1}}));
  EXPECT_EQ(names(ansi), "mlx5_0,mlx5_1,");
  const std::string pasted =
      replaced(replaced(data("topo/20_ansi_underlined_header.txt"), "\x1b", ""), "\x1b", "");
  EXPECT_EQ(names(topology::read_nvidia_smi_topo(pasted, "web page")), "mlx5_0,mlx5_1,");
  const std::string spaces = "\xc2\xa0 GPU0\xc2\xa0GPU1\nGPU0\xc2\xa0X PIX\nGPU1 PIX\xc2\xa0X\n";
  EXPECT_EQ(kinds(topology::read_nvidia_smi_topo(spaces, "web page")), "i");
  const topology::Cluster order = topo("22_out_of_order_rows.txt");
  EXPECT_EQ(order.devices.size(), 3U);
  EXPECT_EQ(nearest(order), (std::vector<Ints>{{0}, {0}, {0}}));
  const topology::Cluster preamble = topo("23_preamble_line.txt");
  EXPECT_EQ(preamble.devices.size(), 2U);
  EXPECT_TRUE(notes_have(preamble.notes, "line 1 ignored: 'Note: GPU0 detected at startup'"));
}

TEST(NvidiaSmi, TwoIslands) {
  const topology::Cluster c = topo("28_h200_two_nvl4_islands_tabs.txt");
  EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(c.devices[5].nvlink_domain, 1);
  EXPECT_EQ(kinds(c), "nnnssssnnssssnssssssssnnnnnn");
}

TEST(NvidiaSmi, RefusesOtherMatrices) {
  expect_topo_refused(data("topo/24_malformed_more_rows_than_columns.txt"), 4, "GPU2", "no column");
  expect_topo_refused(data("topo/26_p2p_matrix_ns.txt"), 2, "NS", "nvidia-smi topo -p2p");
  expect_topo_refused("", 0, "", "not the output of nvidia-smi topo -m");
  expect_topo_refused("# nThread 1 nGpus 8\n", 0, "", "not the output of nvidia-smi topo -m");
}

TEST(NvidiaSmi, RefusesBrokenMatrices) {
  const std::string good = data("topo/02_h20_8gpu_nv18_nonic.txt");
  const std::string small = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n";
  EXPECT_EQ(topology::read_nvidia_smi_topo(small, "s").devices.size(), 2U);
  expect_topo_refused(replaced(small, "NV4", "NV2"), 2, "NV2",
                      "differs from the mirrored cell 'NV4' in line 3");
  expect_topo_refused(replaced(small, "NV4", "MPB"), 2, "MPB", "no path known");
  expect_topo_refused(replaced(small, "NV4", "NV0"), 2, "NV0", "no path known");
  expect_topo_refused(replaced(small, "NV4", ""), 2, "GPU0", "the cell of column GPU1 is missing");
  expect_topo_refused(replaced(small, "\tNV4\n", "\tNV4\tSYS\n"), 2, "SYS", "more cells than the header");
  expect_topo_refused(replaced(small, "GPU1\tNV4\tX\n", ""), 1, "GPU1", "has no row");
  expect_topo_refused(small + "GPU1\tNV4\tX\n", 4, "GPU1",
                      "a second row of this label; the first is in line 3");
  expect_topo_refused(small + small, 4, "GPU0", "a second matrix begins here");
  expect_topo_refused(replaced(small, "\tGPU1\n", "\tGPU1\tGPU1\n"), 1, "GPU1",
                      "two columns have this label");
  expect_topo_refused(replaced(small, "X\tNV4", "NV4\tX"), 2, "NV4", "must be X");
  expect_topo_refused(small.substr(small.find('\n') + 1), 1, "GPU0", "before its header");
  expect_topo_refused(good.substr(0, good.rfind("GPU7")), 1, "GPU7", "has no row");
}

TEST(NvidiaSmi, EmptyAffinityCells) {
  const std::string tabs =
      "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tSYS\t\t3\t\tN/A\nGPU1\tSYS\t X "
      "\t0-3\tN/A\t\tN/A\n";
  EXPECT_EQ(numa(topology::read_nvidia_smi_topo(tabs, "t")), (Ints{3, -1}));
  const std::string blanks =
      "  GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X SYS 0-3 1 N/A\nGPU1 SYS X 2 N/A\n";
  const topology::Cluster c = topology::read_nvidia_smi_topo(blanks, "b");
  EXPECT_EQ(numa(c), (Ints{1, -1}));
  EXPECT_TRUE(notes_have(c.notes, "2 affinity values for 3 columns"));
}

TEST(NvidiaSmi, LabelsNeedNotStartAtZero) {
  const topology::Cluster c = topology::read_nvidia_smi_topo(" GPU4 GPU6\nGPU6 PIX X\nGPU4 X PIX\n", "s");
  EXPECT_EQ(c.devices[0].local, 4);
  EXPECT_EQ(c.devices[1].local, 6);
  EXPECT_EQ(kinds(c), "i");
}

TEST(NcclXml, HandWrittenSwitchesWithComments) {
  const topology::Cluster c = xml("aws-p4d-24xl-topo.xml");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(c.nics.size(), 4U);
  EXPECT_EQ(kinds(c), "ihhsssshhssssissssssssihhhhi");
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}}));
  ASSERT_TRUE(c.links[0].gb_s.known());
  EXPECT_NEAR(*c.links[0].gb_s.value, 8.0 * 16 / 8 * 128 / 130, 1e-9);
  EXPECT_EQ(c.links[0].gb_s.provenance, topology::Provenance::preset);
  EXPECT_EQ(c.links[0].gb_s.source, "link_speed 8 GT/s x 16");
  EXPECT_FALSE(c.links[6].gb_s.known()) << "nothing in the file states the bandwidth between sockets";
  EXPECT_FALSE(c.nics[0].gb_s.known());
  EXPECT_TRUE(notes_have(c.notes, "written by hand"));
  EXPECT_TRUE(notes_have(c.notes, "no <nvlink>"));
}

TEST(NcclXml, TagsSpeedsAndFourNicsPerDevice) {
  const topology::Cluster c = xml("aws-p5.48xl-topo.xml");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(c.nics.size(), 32U);
  EXPECT_EQ(kinds(c), std::string(28, 'h'));
  EXPECT_EQ(numa(c), Ints(8, 0));
  EXPECT_EQ(c.devices[7].nics, (Ints{28, 29, 30, 31}));
  EXPECT_EQ(c.nics[31].name, "rdmap201s0");
  EXPECT_DOUBLE_EQ(c.nics[31].gb_s.value.value(), 12.5);
  EXPECT_NEAR(*c.links[0].gb_s.value, 16.0 * 16 / 8 * 128 / 130, 1e-9)
      << "the switch uplink is slower than the slot";
  EXPECT_NEAR(*c.nodes[0].pcie_gb_s.value, 32.0 * 16 / 8 * 128 / 130, 1e-9);
}

TEST(NcclXml, DevicesByClassInBusOrder) {
  const topology::Cluster v2 = xml("azure-ndv2-topo.xml");
  EXPECT_EQ(kinds(v2), "hhhsssshhsssshsssssssshhhhhh");
  EXPECT_EQ(v2.nics.size(), 1U);
  const topology::Cluster v4 = xml("azure-ndv4-topo.xml");
  EXPECT_EQ(numa(v4), (Ints{1, 1, 0, 0, 3, 3, 2, 2}));
  EXPECT_EQ(nearest(v4), (std::vector<Ints>{{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4, 5}, {4, 5}, {6, 7}, {6, 7}}));
  EXPECT_EQ(v4.nodes[0].numa_count, 4);
  const topology::Cluster v5 = xml("azure-ndv5-topo.xml");
  EXPECT_EQ(numa(v5), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(v5), (std::vector<Ints>{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_TRUE(notes_have(v5.notes, "no <gpu>"));
}

std::string nvlink_machine(const std::string& first, const std::string& second) {
  return "<system version=\"1\"><cpu numaid=\"-1\">\n<pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu "
         "dev=\"0\" "
         "sm=\"90\">\n" +
         first + "</gpu></pci>\n<pci busid=\"0000:02:00.0\" class=\"0x030200\"><gpu dev=\"1\" sm=\"90\">\n" +
         second + "</gpu></pci></cpu></system>";
}

/// RCCL writes version 2; its devices reach each other over xGMI, as those of the MI300X preset do.
TEST(NcclXml, RcclsVersionWithXgmi) {
  std::string text = nvlink_machine("<xgmi target=\"0000:02:00.0\" count=\"1\" tclass=\"0x038000\"/>",
                                    "<xgmi target=\"0000:01:00.0\" count=\"1\" tclass=\"0x038000\"/>");
  text.replace(text.find("version=\"1\""), 11, "version=\"2\"");
  const topology::Cluster cluster = topology::read_nccl_xml(text, "x");
  EXPECT_EQ(cluster.links.at(0).kind, topology::LinkKind::xgmi);
  ASSERT_EQ(cluster.domains.size(), 1U);
  EXPECT_EQ(cluster.domains[0].devices, (Ints{0, 1}));
  EXPECT_FALSE(cluster.domains[0].switched);
}

TEST(NcclXml, HostsAreBounded) {
  std::string text = "<system version=\"1\"><cpu numaid=\"-1\">\n";
  for (int i = 0; i < 1025; ++i)
    text += "<pci busid=\"0000:" + std::to_string(i) + "\" class=\"0x030200\"><gpu dev=\"" +
            std::to_string(i) + "\" sm=\"90\"/></pci>\n";
  expect_xml_refused(text + "</cpu></system>", 1, "gpu", "1025 of them");
}

TEST(NcclXml, NvlinksDirectAndSwitched) {
  const topology::Cluster direct = topology::read_nccl_xml(
      nvlink_machine("<nvlink target=\"0000:02:00.0\" count=\"4\" tclass=\"0x030200\"/>",
                     "<nvlink target=\"0000:01:00.0\" count=\"4\" tclass=\"0x030200\"/>"),
      "x");
  EXPECT_EQ(lanes(direct), Ints{4});
  EXPECT_FALSE(direct.domains[0].switched);
  EXPECT_EQ(numa(direct), (Ints{-1, -1}));
  const std::string ports =
      "<nvlink target=\"0000:c4:00.0\" count=\"5\" tclass=\"0x068000\"/>"
      "<nvlink target=\"0000:c5:00.0\" count=\"4\" tclass=\"0x068000\"/>";
  const topology::Cluster switched = topology::read_nccl_xml(nvlink_machine(ports, ports), "x");
  EXPECT_EQ(lanes(switched), Ints{9});
  EXPECT_TRUE(switched.domains[0].switched);
}

TEST(NcclXml, RefusesWhatIsNoMachine) {
  expect_xml_refused(data("nccl_xml/azure-ncv4-graph.xml"), 1, "graphs", "graph file");
  expect_xml_refused("", 1, "", "not well-formed");
  expect_xml_refused("<html/>", 1, "html", "root is <system>");
  expect_xml_refused("<system version=\"3\"/>", 1, "3", "version");
  expect_xml_refused("<system version=\"1\"/>", 1, "system", "no device");
  expect_xml_refused("<!DOCTYPE s [<!ENTITY a \"b\">]>\n<system version=\"1\"/>", 1, "s", "document type");
  std::string deep = "<system version=\"1\">";
  for (int i = 0; i < 100; ++i) deep += "<cpu>";
  expect_xml_refused(deep, 1, "cpu", "deeper than 64");
  const std::string good = data("nccl_xml/azure-ndv2-topo.xml");
  expect_xml_refused(good.substr(0, good.size() / 2), 7, "", "not well-formed");
  expect_xml_refused(replaced(good, "0002:00", "0001:00"), 4, "0001:00:00.0",
                     "two elements have this bus id");
  expect_xml_refused(replaced(good, "class=\"0x030200\"", "class=\"gpu\""), 3, "gpu", "hexadecimal");
  expect_xml_refused(replaced(good, "<cpu", "<cpus"), 8, "", "not well-formed");
}

TEST(NcclXml, RefusesLinksThatDoNotMeet) {
  const std::string there = "<nvlink target=\"0000:02:00.0\" count=\"4\" tclass=\"0x030200\"/>";
  expect_xml_refused(nvlink_machine(there, ""), 3, "0000:02:00.0", "states 0 back");
  expect_xml_refused(nvlink_machine(replaced(there, "02:00", "07:00"), ""), 3, "0000:07:00.0",
                     "no other device");
  expect_xml_refused(nvlink_machine(replaced(there, "\"4\"", "\"0\""), ""), 3, "0", "count must be");
  expect_xml_refused(nvlink_machine(replaced(there, "0x030200", "0x0200"), ""), 3, "0x0200", "tclass");
}

}  // namespace
}  // namespace usp
