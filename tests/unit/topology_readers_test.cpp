// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/slurm.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace usp {
namespace {

using Ints = std::vector<int>;

std::string data(const std::string& name) {
  return read_file(std::string(USP_TEST_DATA) + "/" + name);
}
Cluster topo(const std::string& name) {
  return read_nvidia_smi_topo(data("topo/" + name), name);
}
Cluster xml(const std::string& name) {
  return read_nccl_xml(data("nccl_xml/" + name), name);
}
NcclTestsResult tests(const std::string& name) {
  return read_nccl_tests(data("nccl_tests/" + name), name);
}

/// One letter per device pair a < b, in order: n NVLink, c C2C, i PIX, x PXB, h PHB, o NODE, s SYS.
std::string kinds(const Cluster& cluster) {
  std::string text;
  for (const Link& link : cluster.links) text += "ncgixhos?"[static_cast<std::size_t>(link.kind)];
  return text;
}
Ints lanes(const Cluster& cluster) {
  Ints result;
  for (const Link& link : cluster.links) result.push_back(link.lanes);
  return result;
}
/// -1 where unknown.
Ints numa(const Cluster& cluster) {
  Ints result;
  for (const Device& device : cluster.devices) result.push_back(device.numa.value_or(-1));
  return result;
}
std::vector<Ints> nearest(const Cluster& cluster) {
  std::vector<Ints> result;
  for (const Device& device : cluster.devices) result.push_back(device.nics);
  return result;
}
std::vector<Ints> domains(const Cluster& cluster) {
  std::vector<Ints> result;
  for (const NvlinkDomain& domain : cluster.domains) result.push_back(domain.devices);
  return result;
}
bool notes_have(const std::vector<std::string>& notes, const std::string& part) {
  for (const auto& note : notes)
    if (note.find(part) != std::string::npos) return true;
  return false;
}
std::string names(const Cluster& cluster) {
  std::string text;
  for (const Nic& nic : cluster.nics) text += nic.name + ",";
  return text;
}

/// Runs `read` and compares where it fails and with which words.
template <class F>
void expect_refused(F read, long line, const std::string& token, const std::string& words) {
  try {
    read();
    ADD_FAILURE() << "was accepted; expected: " << words;
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where().line, line) << error.what();
    EXPECT_EQ(error.where().token, token) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), ExitCode::invalid_input);
  }
}
void expect_topo_refused(const std::string& text, long line, const std::string& token,
                         const std::string& words) {
  expect_refused([&] { static_cast<void>(read_nvidia_smi_topo(text, "node.txt")); }, line, token, words);
}
void expect_xml_refused(const std::string& text, long line, const std::string& token,
                        const std::string& words) {
  expect_refused([&] { static_cast<void>(read_nccl_xml(text, "topo.xml")); }, line, token, words);
}
void expect_tests_refused(const std::string& text, long line, const std::string& token,
                          const std::string& words) {
  expect_refused([&] { static_cast<void>(read_nccl_tests(text, "nccl.txt")); }, line, token, words);
}
void expect_slurm_refused(const std::string& text, long line, const std::string& token,
                          const std::string& words) {
  expect_refused([&] { static_cast<void>(read_slurm_topology(text, "topology.conf")); }, line, token, words);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the test replaces what is not there: " + from);
  return text.replace(at, from.size(), to);
}

const Ints all_of_8{0, 1, 2, 3, 4, 5, 6, 7};
const std::vector<Ints> one_domain_of_8{all_of_8};

TEST(NvidiaSmi, TabsTwelveNicsMissingNicRows) {
  const Cluster c = topo("01_h100_sxm_8gpu_12nic_tabs_truncated_nic_rows.txt");
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
  const Cluster c = topo("01_h100_sxm_8gpu_12nic_tabs_truncated_nic_rows.txt");
  ASSERT_EQ(c.specs.size(), 1U);
  EXPECT_EQ(c.specs[0].name, "");
  EXPECT_FALSE(c.specs[0].bf16_tflops.known());
  EXPECT_FALSE(c.domains[0].gb_s.known());
  EXPECT_FALSE(c.nics[0].gb_s.known());
  for (const Link& link : c.links) EXPECT_FALSE(link.gb_s.known() || link.latency_s.known());
}

TEST(NvidiaSmi, BlanksWithoutNics) {
  const Cluster c = topo("02_h20_8gpu_nv18_nonic.txt");
  EXPECT_EQ(lanes(c), Ints(28, 18));
  EXPECT_TRUE(c.nics.empty());
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(c.domains[0].switched);
}

TEST(NvidiaSmi, LegendNamesNicsAndFarDevicesHaveNone) {
  const Cluster c = topo("03_a100_8gpu_4numa_3nic_legend.txt");
  EXPECT_EQ(lanes(c), Ints(28, 12));
  EXPECT_TRUE(c.domains[0].switched);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,mlx5_2,");
  EXPECT_EQ(numa(c), (Ints{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {2}, {2}, {}, {}, {}, {}}));
  EXPECT_TRUE(notes_have(c.notes, "no NIC is nearer than another to device 4, 5, 6, 7"));
}

TEST(NvidiaSmi, CubeMeshIsOneDomainWithoutSwitch) {
  const Cluster c = topo("04_v100_cubemesh_8gpu_mlx5cols.txt");
  EXPECT_EQ(kinds(c), "nnnsssnnnssnsnsnssnsssnnnnnn");
  EXPECT_EQ(lanes(c),
            (Ints{1, 2, 1, 0, 0, 0, 2, 1, 2, 0, 0, 2, 0, 2, 0, 1, 0, 0, 1, 0, 0, 0, 2, 2, 1, 1, 2, 1}));
  EXPECT_EQ(domains(c), one_domain_of_8);
  EXPECT_FALSE(c.domains[0].switched);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,");
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}}));
}

TEST(NvidiaSmi, BridgedPairs) {
  const Cluster c = topo("05_azure_nc96_a100_pairs_4numa.txt");
  EXPECT_EQ(kinds(c), "nssssn");
  EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1}, {2, 3}}));
  EXPECT_FALSE(c.domains[0].switched);
  EXPECT_EQ(numa(c), (Ints{0, 1, 2, 3}));
}

TEST(NvidiaSmi, DirectCliqueFitsOneDevice) {
  for (const char* name : {"06_a100_4gpu_nv4_4nic_pxb.txt", "27_h200_nvl_nv6_handcopied_arrows.txt"}) {
    const Cluster c = topo(name);
    EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1, 2, 3}})) << name;
    EXPECT_FALSE(c.domains[0].switched) << name;
    EXPECT_TRUE(notes_have(c.notes, "read as direct links")) << name;
  }
  const Cluster a100 = topo("06_a100_4gpu_nv4_4nic_pxb.txt");
  EXPECT_EQ(lanes(a100), Ints(6, 4));
  EXPECT_EQ(nearest(a100), (std::vector<Ints>{{0}, {1}, {2}, {3}}));
  const Cluster h200 = topo("27_h200_nvl_nv6_handcopied_arrows.txt");
  EXPECT_EQ(lanes(h200), Ints(6, 6));
  EXPECT_TRUE(notes_have(h200.notes, "line 5 ignored: '<-- GPU 3 talks to 2 via NVLink'"));
}

TEST(NvidiaSmi, NicsAllAlikeGiveNoAffinity) {
  const Cluster tray = topo("09_gb200_tray_all_nic_sys_tabs.txt");
  EXPECT_EQ(tray.nics.size(), 6U);
  EXPECT_EQ(nearest(tray), (std::vector<Ints>{{}, {}, {}, {}}));
  EXPECT_EQ(numa(tray), (Ints{-1, -1, -1, -1}));
  EXPECT_TRUE(notes_have(tray.notes, "same distance from every device"));
  const Cluster vm = topo("15_4xh100_vm_flat_nic_phb.txt");
  EXPECT_EQ(lanes(vm), Ints(6, 18));
  EXPECT_TRUE(vm.domains[0].switched);
  EXPECT_EQ(names(vm), ",");
  EXPECT_EQ(nearest(vm), (std::vector<Ints>{{}, {}, {}, {}}));
  EXPECT_TRUE(notes_have(vm.notes, "hypervisor"));
}

TEST(NvidiaSmi, CommentsBehindRowsAreNotedNotUsed) {
  const Cluster c = topo("11_mixed_sxm_pcie_trailing_comment.txt");
  EXPECT_EQ(kinds(c), "nssssi");
  EXPECT_EQ(domains(c), (std::vector<Ints>{{0, 1}}));
  EXPECT_EQ(c.devices[2].nvlink_domain, -1);
  EXPECT_EQ(numa(c), (Ints{-1, -1, -1, -1}));
  EXPECT_TRUE(notes_have(c.notes, "line 4 ignored: '\xe2\x86\x90 NUMA 1'"));
}

TEST(NvidiaSmi, PcieMachines) {
  EXPECT_EQ(kinds(topo("13_8xl4_phb_sys.txt")), "hhhsssshhsssshsssssssshhhhhh");
  const Cluster c = topo("14_8gpu_pcie_node_sys_tabs.txt");
  EXPECT_EQ(kinds(c), "ooossssoossssossssssssoooooo");
  EXPECT_TRUE(c.domains.empty());
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(NvidiaSmi, SmallMachines) {
  const Cluster one = topo("16_single_gpu_tabs.txt");
  EXPECT_EQ(one.devices.size(), 1U);
  EXPECT_TRUE(one.links.empty());
  EXPECT_EQ(numa(one), Ints{0});
  const Cluster two = topo("17_2x3090_nv4_tabs.txt");
  EXPECT_EQ(lanes(two), Ints{4});
  EXPECT_FALSE(two.domains[0].switched);
}

TEST(NvidiaSmi, WrappedHeader) {
  const Cluster c = topo("19_wrapped_header.txt");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(names(c), "mlx5_0,mlx5_1,");
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {1}, {0, 1}, {0, 1}, {}, {}, {}, {}}));
}

TEST(NvidiaSmi, AnsiRowOrderAndPreamble) {
  const Cluster ansi = topo("20_ansi_underlined_header.txt");
  EXPECT_EQ(nearest(ansi), (std::vector<Ints>{{0}, {1}}));
  EXPECT_EQ(names(ansi), "mlx5_0,mlx5_1,");
  const Cluster order = topo("22_out_of_order_rows.txt");
  EXPECT_EQ(order.devices.size(), 3U);
  EXPECT_EQ(nearest(order), (std::vector<Ints>{{0}, {0}, {0}}));
  const Cluster preamble = topo("23_preamble_line.txt");
  EXPECT_EQ(preamble.devices.size(), 2U);
  EXPECT_TRUE(notes_have(preamble.notes, "line 1 ignored: 'Note: GPU0 detected at startup'"));
}

TEST(NvidiaSmi, TwoIslands) {
  const Cluster c = topo("28_h200_two_nvl4_islands_tabs.txt");
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
  EXPECT_EQ(read_nvidia_smi_topo(small, "s").devices.size(), 2U);
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
  EXPECT_EQ(numa(read_nvidia_smi_topo(tabs, "t")), (Ints{3, -1}));
  const std::string blanks =
      "  GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X SYS 0-3 1 N/A\nGPU1 SYS X 2 N/A\n";
  const Cluster c = read_nvidia_smi_topo(blanks, "b");
  EXPECT_EQ(numa(c), (Ints{1, -1}));
  EXPECT_TRUE(notes_have(c.notes, "2 affinity values for 3 columns"));
}

TEST(NvidiaSmi, LabelsNeedNotStartAtZero) {
  const Cluster c = read_nvidia_smi_topo(" GPU4 GPU6\nGPU6 PIX X\nGPU4 X PIX\n", "s");
  EXPECT_EQ(c.devices[0].local, 4);
  EXPECT_EQ(c.devices[1].local, 6);
  EXPECT_EQ(kinds(c), "i");
}

TEST(NcclXml, HandWrittenSwitchesWithComments) {
  const Cluster c = xml("aws-p4d-24xl-topo.xml");
  EXPECT_EQ(c.devices.size(), 8U);
  EXPECT_EQ(c.nics.size(), 4U);
  EXPECT_EQ(kinds(c), "ihhsssshhssssissssssssihhhhi");
  EXPECT_EQ(numa(c), (Ints{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nearest(c), (std::vector<Ints>{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}}));
  ASSERT_TRUE(c.links[0].gb_s.known());
  EXPECT_NEAR(*c.links[0].gb_s.value, 8.0 * 16 / 8 * 128 / 130, 1e-9);
  EXPECT_EQ(c.links[0].gb_s.provenance, Provenance::preset);
  EXPECT_EQ(c.links[0].gb_s.source, "link_speed 8 GT/s x 16");
  EXPECT_FALSE(c.links[6].gb_s.known()) << "nothing in the file states the bandwidth between sockets";
  EXPECT_FALSE(c.nics[0].gb_s.known());
  EXPECT_TRUE(notes_have(c.notes, "written by hand"));
  EXPECT_TRUE(notes_have(c.notes, "no <nvlink>"));
}

TEST(NcclXml, TagsSpeedsAndFourNicsPerDevice) {
  const Cluster c = xml("aws-p5.48xl-topo.xml");
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
  const Cluster v2 = xml("azure-ndv2-topo.xml");
  EXPECT_EQ(kinds(v2), "hhhsssshhsssshsssssssshhhhhh");
  EXPECT_EQ(v2.nics.size(), 1U);
  const Cluster v4 = xml("azure-ndv4-topo.xml");
  EXPECT_EQ(numa(v4), (Ints{1, 1, 0, 0, 3, 3, 2, 2}));
  EXPECT_EQ(nearest(v4), (std::vector<Ints>{{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4, 5}, {4, 5}, {6, 7}, {6, 7}}));
  EXPECT_EQ(v4.nodes[0].numa_count, 4);
  const Cluster v5 = xml("azure-ndv5-topo.xml");
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

TEST(NcclXml, NvlinksDirectAndSwitched) {
  const Cluster direct =
      read_nccl_xml(nvlink_machine("<nvlink target=\"0000:02:00.0\" count=\"4\" tclass=\"0x030200\"/>",
                                   "<nvlink target=\"0000:01:00.0\" count=\"4\" tclass=\"0x030200\"/>"),
                    "x");
  EXPECT_EQ(lanes(direct), Ints{4});
  EXPECT_FALSE(direct.domains[0].switched);
  EXPECT_EQ(numa(direct), (Ints{-1, -1}));
  const std::string ports =
      "<nvlink target=\"0000:c4:00.0\" count=\"5\" tclass=\"0x068000\"/>"
      "<nvlink target=\"0000:c5:00.0\" count=\"4\" tclass=\"0x068000\"/>";
  const Cluster switched = read_nccl_xml(nvlink_machine(ports, ports), "x");
  EXPECT_EQ(lanes(switched), Ints{9});
  EXPECT_TRUE(switched.domains[0].switched);
}

TEST(NcclXml, RefusesWhatIsNoMachine) {
  expect_xml_refused(data("nccl_xml/azure-ncv4-graph.xml"), 1, "graphs", "graph file");
  expect_xml_refused("", 1, "", "not well-formed");
  expect_xml_refused("<html/>", 1, "html", "root is <system>");
  expect_xml_refused("<system version=\"2\"/>", 1, "2", "version");
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

TEST(NcclTests, BothPlaces) {
  const NcclTestsResult r = tests("a100_8gpu_all_reduce_both_places.txt");
  EXPECT_EQ(r.operation, "all_reduce");
  EXPECT_EQ(r.ranks, 8);
  EXPECT_TRUE(r.missing_ranks.empty());
  EXPECT_EQ(r.hosts, std::vector<std::string>{"node0"});
  EXPECT_EQ(r.device_names, std::vector<std::string>{"NVIDIA A100-SXM4-80GB"});
  ASSERT_EQ(r.rows.size(), 1U);
  const NcclTestsRow& row = r.rows[0];
  EXPECT_EQ(row.size_bytes, 268435456);
  EXPECT_EQ(row.count, 67108864);
  EXPECT_EQ(row.type + "/" + row.redop, "float/sum");
  EXPECT_EQ(row.root, -1);
  ASSERT_TRUE(row.out_of_place && row.in_place);
  EXPECT_DOUBLE_EQ(row.out_of_place->time_us, 2374.1);
  EXPECT_DOUBLE_EQ(row.out_of_place->algbw_gb_s, 113.07);
  EXPECT_DOUBLE_EQ(row.in_place->busbw_gb_s, 197.73);
  EXPECT_EQ(row.in_place->wrong, 0);
  EXPECT_DOUBLE_EQ(r.average_busbw_gb_s.value(), 197.8);
}

TEST(NcclTests, ElidedRanksOfTwoNodes) {
  const NcclTestsResult r = tests("b200_16gpu_2node_all_reduce_elided_ranks.txt");
  EXPECT_EQ(r.operation, "all_reduce");
  EXPECT_EQ(r.ranks, 16);
  EXPECT_EQ(r.missing_ranks, (Ints{2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14}));
  EXPECT_EQ(r.hosts, (std::vector<std::string>{"node 0", "node 1"}));
  EXPECT_EQ(r.device_names, std::vector<std::string>{"NVIDIA B200"});
  ASSERT_EQ(r.rows.size(), 12U);
  EXPECT_EQ(r.rows[11].size_bytes, 17179869184);
  EXPECT_FALSE(r.rows[11].in_place);
  EXPECT_FALSE(r.rows[11].out_of_place->wrong);
  EXPECT_DOUBLE_EQ(r.average_busbw_gb_s.value(), 448.13);
}

TEST(NcclTests, OneNodeWithoutChecks) {
  const NcclTestsResult r = tests("b200_8gpu_all_reduce.txt");
  EXPECT_EQ(r.ranks, 8);
  EXPECT_TRUE(r.hosts.empty());
  EXPECT_EQ(r.rows.size(), 12U);
  EXPECT_DOUBLE_EQ(r.rows[0].out_of_place->time_us, 80.32);
}

TEST(NcclTests, AllToAllWithNotAvailable) {
  const NcclTestsResult r = tests("gb300_8gpu_2host_1rack_alltoall.txt");
  EXPECT_EQ(r.operation, "all_to_all");
  EXPECT_EQ(r.ranks, 8);
  EXPECT_EQ(r.missing_ranks, (Ints{2, 3, 4, 5}));
  EXPECT_EQ(r.hosts, (std::vector<std::string>{"node-a", "node-b"}));
  ASSERT_EQ(r.rows.size(), 2U);
  EXPECT_EQ(r.rows[0].out_of_place->wrong, 0);
  EXPECT_FALSE(r.rows[0].in_place->wrong);
  EXPECT_DOUBLE_EQ(r.rows[1].out_of_place->busbw_gb_s, 685.06);
  EXPECT_TRUE(notes_have(r.notes, "rows were left out"));
  EXPECT_TRUE(notes_have(r.notes, "NCCL version 2.28.7"));
}

TEST(NcclTests, RefusesRunsThatHoldNoCurve) {
  expect_tests_refused(data("nccl_tests/h100_built_without_mpi_all_rank0.txt"), 6, "Rank 0", "without MPI");
  expect_tests_refused("", 0, "", "no row of measurements");
  const std::string good = data("nccl_tests/a100_8gpu_all_reduce_both_places.txt");
  expect_tests_refused(replaced(good, "      0   2375.8", "      3   2375.8"), 16, "3", "wrong results");
  expect_tests_refused(replaced(good, "values : 0 OK", "values : 2 FAILED"), 17, "2", "wrong results");
  expect_tests_refused(replaced(good, "113.07", "131.07"), 16, "131.07", "algbw must be size / time");
  expect_tests_refused(replaced(good, "(us)", "(ms)"), 15, "(ms)", "unknown unit");
  expect_tests_refused(replaced(good, "  197.73      0", "  197.73"), 16, "197.73",
                       "12 values for 13 columns");
  expect_tests_refused(replaced(good, "Rank  3", "Rank  1"), 7, "Rank 1", "ranks must rise");
  expect_tests_refused(replaced(good, "Rank  3 Group  0", "Rank  3 Group  1"), 7, "1", "second group");
  expect_tests_refused(replaced(good, " redop ", " radix "), 14, "radix", "unknown column");
  const std::string curve = data("nccl_tests/b200_8gpu_all_reduce.txt");
  const std::size_t second = curve.find("    16777216 ");
  const std::string row = curve.substr(second, curve.find('\n', second) - second + 1);
  expect_tests_refused(curve.substr(0, second) + row + curve.substr(second), 17, "16777216",
                       "sizes must rise");
}

TEST(NcclTests, OldColumnsAndUnknownOperation) {
  const std::string old =
      "#   Rank  0 Pid  7 on host0 device  0 [0x07] A100\n#   Rank  1 Pid  7 on host0 device  1 [0x0f] A100\n"
      "#       size  count  type   time  algbw  busbw  error   time  algbw  busbw  error\n"
      "#       (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)\n"
      " 1000000 250000 float 100.0 10.00 5.00 0e+00 200.0 5.00 2.50 N/A\n"
      " 2000000 500000 float 100.0 20.00 10.00 2e-07 N/A N/A N/A N/A\n";
  const NcclTestsResult r = read_nccl_tests(old, "old.txt");
  EXPECT_FALSE(r.operation);
  EXPECT_EQ(r.ranks, 2);
  ASSERT_EQ(r.rows.size(), 2U);
  EXPECT_EQ(r.rows[0].redop, "");
  EXPECT_TRUE(r.rows[0].in_place);
  EXPECT_FALSE(r.rows[1].in_place);
  EXPECT_TRUE(notes_have(r.notes, "may be cut"));
  EXPECT_TRUE(notes_have(r.notes, "operation is unknown"));
}

TEST(Slurm, HostLists) {
  const auto expand = [](const std::string& list) { return join(expand_host_list(list, "f", 1), " "); };
  EXPECT_EQ(expand("cfc[08-11]"), "cfc08 cfc09 cfc10 cfc11");
  EXPECT_EQ(expand("s[0-3]"), "s0 s1 s2 s3");
  EXPECT_EQ(expand("a[1-3,7],b[01-02]"), "a1 a2 a3 a7 b01 b02");
  EXPECT_EQ(expand("r[1-2]n[0-1]-ib,login"), "r1n0-ib r1n1-ib r2n0-ib r2n1-ib login");
  EXPECT_EQ(expand("n[9-11]"), "n9 n10 n11");
  for (const char* bad : {"", ",", "a,", "a[1-3", "a]", "a[3-1]", "a[]", "a[1-]", "a[x]", "a b", "a[1-3,,4]",
                          "a[1-1000001]", "a[1-2000]b[1-2000]"})
    EXPECT_THROW(static_cast<void>(expand_host_list(bad, "f", 1)), InvalidInput) << bad;
  EXPECT_EQ(expand_host_list("a[1-1000000]", "f", 1).size(), 1000000U);
}

TEST(Slurm, TreeToFabric) {
  const SlurmTopology t = read_slurm_topology(
      "# two leaves\nSwitchName=s0 Nodes=cfc[01-03],\\\n   gpu7 LinkSpeed=100\n\nswitchname=s1 "
      "nodes=cfc[04-05]\n"
      "SwitchName=core Switches=s[0-1] # spine\n",
      "topology.conf");
  ASSERT_EQ(t.switches.size(), 3U);
  EXPECT_EQ(join(t.node_names, " "), "cfc01 cfc02 cfc03 gpu7 cfc04 cfc05");
  EXPECT_EQ(join(t.switches[2].switches, " "), "s0 s1");
  EXPECT_TRUE(notes_have(t.notes, "LinkSpeed is ignored"));
  const Fabric fabric = fabric_from(t);
  EXPECT_EQ(fabric.kind, FabricKind::fat_tree);
  EXPECT_EQ(fabric.leaves, (std::vector<Ints>{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_FALSE(fabric.oversubscription.known());
}

TEST(Slurm, Refuses) {
  expect_slurm_refused("# nothing\n", 0, "", "no SwitchName");
  expect_slurm_refused("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", 2, "a", "defined twice");
  expect_slurm_refused("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2\n", 2, "n2", "below two switches");
  expect_slurm_refused("SwitchName=a Switches=b\n", 1, "b", "not defined");
  expect_slurm_refused("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", 1, "a", "below itself");
  expect_slurm_refused("SwitchName=a\n", 1, "a", "either Nodes= or Switches=");
  expect_slurm_refused("SwitchName=a Nodes=n1 Switches=b\n", 1, "a", "either Nodes= or Switches=");
  expect_slurm_refused("Nodes=n1\n", 1, "Nodes=n1", "no SwitchName=");
  expect_slurm_refused("SwitchName=a Node=n1\n", 1, "node", "unknown keyword");
  expect_slurm_refused("BlockName=b Nodes=n1\n", 1, "blockname", "topology/block");
  expect_slurm_refused("SwitchName=a Nodes=n1 \\\n", 1, "\\", "nothing follows");
}

}  // namespace
}  // namespace usp
