// SPDX-License-Identifier: Apache-2.0
#include "reader_checks.hpp"

#include "usp/base/text.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/slurm.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

using namespace test;
using Ints = std::vector<int>;

topology::NcclTestsResult tests(const std::string& name) {
  return topology::read_nccl_tests(data("nccl_tests/" + name), name);
}
void expect_tests_refused(const std::string& text, long line, const std::string& token,
                          const std::string& words) {
  expect_refused([&] { static_cast<void>(topology::read_nccl_tests(text, "nccl.txt")); }, line, token, words);
}
void expect_slurm_refused(const std::string& text, long line, const std::string& token,
                          const std::string& words) {
  expect_refused([&] { static_cast<void>(topology::read_slurm_topology(text, "topology.conf")); }, line,
                 token, words);
}

TEST(NcclTests, BothPlaces) {
  const topology::NcclTestsResult r = tests("a100_8gpu_all_reduce_both_places.txt");
  EXPECT_EQ(r.operation, "all_reduce");
  EXPECT_EQ(r.ranks, 8);
  EXPECT_TRUE(r.missing_ranks.empty());
  EXPECT_EQ(r.hosts, std::vector<std::string>{"node0"});
  EXPECT_EQ(r.device_names, std::vector<std::string>{"NVIDIA A100-SXM4-80GB"});
  ASSERT_EQ(r.rows.size(), 1U);
  const topology::NcclTestsRow& row = r.rows[0];
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
  const topology::NcclTestsResult r = tests("b200_16gpu_2node_all_reduce_elided_ranks.txt");
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
  const topology::NcclTestsResult r = tests("b200_8gpu_all_reduce.txt");
  EXPECT_EQ(r.ranks, 8);
  EXPECT_TRUE(r.hosts.empty());
  EXPECT_EQ(r.rows.size(), 12U);
  EXPECT_DOUBLE_EQ(r.rows[0].out_of_place->time_us, 80.32);
}

TEST(NcclTests, AllToAllWithNotAvailable) {
  const topology::NcclTestsResult r = tests("gb300_8gpu_2host_1rack_alltoall.txt");
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
  std::string moved = curve;  // behind all larger ones, where no earlier row had its size
  moved.erase(second, row.size());
  moved.insert(moved.rfind('\n', moved.find("# Out of bounds")) + 1, row);
  expect_tests_refused(moved, 26, "16777216", "sizes must rise");
}

TEST(NcclTests, RowsOfNoBytesAreLeftOut) {
  const std::string head =
      "# Collective test starting: alltoall_perf\n#  Rank  0 Pid  7 on h device  0 [0] A\n"
      "#  Rank  1 Pid  7 on h device  1 [1] A\n"
      "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
  const std::string none = " 0 0 float none -1 0.21 0.00 0.00 0 0.20 0.00 0.00 N/A\n",
                    some = " 32 1 float none -1 24.10 0.00 0.00 0 23.90 0.00 0.00 N/A\n";
  const topology::NcclTestsResult r = topology::read_nccl_tests(head + none + none + some, "f");
  ASSERT_EQ(r.rows.size(), 1U);
  EXPECT_EQ(r.rows[0].size_bytes, 32);
  EXPECT_TRUE(notes_have(r.notes, "2 rows of 0 bytes"));
  expect_tests_refused(head + none, 0, "", "no row of measurements");
  const std::string again = head.substr(head.find("#  size"));
  EXPECT_EQ(topology::read_nccl_tests(head + some + again + none + some, "f").rows.back().block, 1);
}

/// Pasted into a web page, where '#' begins a title.
TEST(NcclTests, LinesWithoutTheirHashAreRead) {
  for (const char* name : {"b200_8gpu_all_reduce.txt", "a100_8gpu_all_reduce_both_places.txt"}) {
    const std::string text = data(std::string("nccl_tests/") + name);
    std::string bare;
    for (std::size_t at = 0; at < text.size(); ++at)
      if (text[at] != '#' || (at > 0 && text[at - 1] != '\n')) bare += text[at];
    const topology::NcclTestsResult a = topology::read_nccl_tests(text, "a"),
                                    b = topology::read_nccl_tests(bare, "b");
    EXPECT_EQ(a.operation, b.operation);
    EXPECT_EQ(a.ranks, b.ranks);
    EXPECT_EQ(a.rows.size(), b.rows.size());
    EXPECT_EQ(a.average_busbw_gb_s, b.average_busbw_gb_s);
  }
}

TEST(NcclTests, OldColumnsAndUnknownOperation) {
  const std::string old =
      "#   Rank  0 Pid  7 on host0 device  0 [0x07] A100\n#   Rank  1 Pid  7 on host0 device  1 [0x0f] A100\n"
      "#       size  count  type   time  algbw  busbw  error   time  algbw  busbw  error\n"
      "#       (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)\n"
      " 1000000 250000 float 100.0 10.00 5.00 0e+00 200.0 5.00 2.50 N/A\n"
      " 2000000 500000 float 100.0 20.00 10.00 2e-07 N/A N/A N/A N/A\n";
  const topology::NcclTestsResult r = topology::read_nccl_tests(old, "old.txt");
  EXPECT_FALSE(r.operation);
  EXPECT_EQ(r.ranks, 2);
  ASSERT_EQ(r.rows.size(), 2U);
  EXPECT_EQ(r.rows[0].redop, "");
  EXPECT_TRUE(r.rows[0].in_place);
  EXPECT_FALSE(r.rows[1].in_place);
  EXPECT_TRUE(notes_have(r.notes, "may be cut"));
  EXPECT_TRUE(notes_have(r.notes, "operation is unknown"));
}

/// How a refusal shows a long token.
std::string shown(const std::string& token) {
  return token.size() > 60 ? token.substr(0, 60) + "..." : token;
}

TEST(Slurm, HostLists) {
  const auto expand = [](const std::string& list) {
    return join(topology::expand_host_list(list, "f", 1), " ");
  };
  EXPECT_EQ(expand("cfc[08-11]"), "cfc08 cfc09 cfc10 cfc11");
  EXPECT_EQ(expand("s[0-3]"), "s0 s1 s2 s3");
  EXPECT_EQ(expand("a[1-3,7],b[01-02]"), "a1 a2 a3 a7 b01 b02");
  EXPECT_EQ(expand("r[1-2]n[0-1]-ib,login"), "r1n0-ib r1n1-ib r2n0-ib r2n1-ib login");
  EXPECT_EQ(expand("n[9-11]"), "n9 n10 n11");
  for (const char* bad : {"", ",", "a,", "a[1-3", "a]", "a[3-1]", "a[]", "a[1-]", "a[x]", "a b", "a[1-3,,4]",
                          "a[1-1000001]", "a[1-2000]b[1-2000]"})
    EXPECT_THROW(static_cast<void>(topology::expand_host_list(bad, "f", 1)), InvalidInput) << bad;
  EXPECT_EQ(topology::expand_host_list("a[1-65536]", "f", 1).size(), 65536U);
}

/// Each of these would take gigabytes, or for ever, if it were expanded before it is refused.
TEST(Slurm, HostListsAreBoundedBeforeTheyAreExpanded) {
  const auto refused = [](const std::string& list, const std::string& words) {
    expect_slurm_refused("SwitchName=s0 Nodes=" + list + "\n", 1, shown(list), words);
  };
  refused(std::string(60000, 'x') + "[0-65535]", "a name of more than 253 bytes");
  refused("[0-710261]a9288888888888888888888888888888888888888888888888888m", "more than 65536 names");
  refused("a[0-99999999]", "more than 65536 names");
  refused("a[1-256]b[1-257]", "more than 65536 names");
  std::string brackets;
  for (int i = 0; i < 6000; ++i) brackets += "[0-60000]";
  refused(brackets, "a name of more than 253 bytes");
  std::string ranges = "a[0-65535";
  for (int i = 0; i < 1000; ++i) ranges += ",0-65535";
  refused(ranges + "]", "more than 65536 names");
  refused(std::string(254, 'n'), "a name of more than 253 bytes");
  EXPECT_EQ(topology::expand_host_list(std::string(250, 'n') + "[0-101]", "f", 1).back().size(), 253U);
  EXPECT_THROW(static_cast<void>(topology::expand_host_list(std::string(251, 'n') + "[0-101]", "f", 1)),
               InvalidInput);
}

TEST(Slurm, AllListsOfAFileTogetherAreBounded) {
  expect_slurm_refused("SwitchName=a Nodes=n[1-60000]\nSwitchName=b Nodes=m[1-6000]\n", 2, "m[1-6000]",
                       "65536 names in the whole file");
  std::string switches;
  for (int i = 0; i <= 65536; ++i) switches += "SwitchName=s" + std::to_string(i) + " Nodes=n\n";
  EXPECT_THROW(static_cast<void>(topology::read_slurm_topology(switches, "f")), InvalidInput);
  expect_slurm_refused(std::string((16 << 20) + 1, '\n'), 0, "", "larger than 16 MiB");
}

TEST(Slurm, TreeToFabric) {
  const topology::SlurmTopology t = topology::read_slurm_topology(
      "# two leaves\nSwitchName=s0 Nodes=cfc[01-03],\\\n   gpu7 LinkSpeed=100\n\nswitchname=s1 "
      "nodes=cfc[04-05]\n"
      "SwitchName=core Switches=s[0-1] # spine\n",
      "topology.conf");
  ASSERT_EQ(t.switches.size(), 3U);
  EXPECT_EQ(join(t.node_names, " "), "cfc01 cfc02 cfc03 gpu7 cfc04 cfc05");
  EXPECT_EQ(join(t.switches[2].switches, " "), "s0 s1");
  EXPECT_TRUE(notes_have(t.notes, "LinkSpeed is ignored"));
  const topology::Fabric fabric = topology::fabric_from(t);
  EXPECT_EQ(fabric.kind, topology::FabricKind::fat_tree);
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
  expect_slurm_refused("SwitchName=a Nodes=n1 \\\n", 1, "\\", "nothing follows");
}

}  // namespace
}  // namespace usp
