// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/base/presets.hpp"
#include "usp/planner/calibration_add.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/links.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace usp {
namespace {

/// Two hosts of two ranks whose line is 0.1 GB/s.
CalibrationFile two_hosts() {
  CalibrationFile content;
  content.name = content.cluster = "pair";
  content.device = {"rank", "measured", 1, {}, {}, {}, 0.05, 8};
  content.links = CalibrationFile::Links{"host", 8, "measured"};
  content.sources = {{"attention", "measured", "own measurement", "usp", "fp32"}};
  content.repeatability = {0.1, 0.04};
  content.collectives = {{Collective::alltoall, 2, 1, 4096, {1e-5, 1.5e-5, 3e-5}},
                         {Collective::reduce_scatter, 2, 1, 4096, {2e-5, 3e-5, 6e-5}}};
  content.point_to_point = {{std::nullopt, 2, "measured", {{4096, 0.4}, {8192, 0.6}}}};
  content.interference = {{std::nullopt, {0.6, 0.5, 0.9, "measured"}}};
  MeasuredNetwork network{0.1, 1e-3, "measured", {}, 0.7, 0.6, 1.0};
  network.curves.push_back(
      {{NetworkOperation::alltoall, 2, 2, 1}, 0.8, 0.7, 0.9, {{1 << 20, 0.0141}, {2 << 20, 0.0272}}});
  network.curves.push_back(
      {{NetworkOperation::hop, 2, 1, 1}, 0.95, 0.9, 1.0, {{1 << 20, 0.012}, {2 << 20, 0.023}}});
  content.network = network;
  content.attention.library = AttentionSurface::Library{"usp cpu", "1"};
  content.attention.family_source = "measured";
  content.memory_source = "measured";
  KernelData& kernel = content.attention.data;
  kernel.family = "cpu";
  kernel.tile_rows = 1;
  kernel.element_bytes = 4;
  kernel.carries_state = true;
  kernel.min_tokens = 64;
  kernel.max_tokens = 1024;
  kernel.fits = {{64, 64, 1e-5, 0.05, 0, 20, 4, 1.5, 12, 0.02, 0.05, 0.1}};
  kernel.backward = {{64, 64, 1.3, -4, 2e-5, 12, 0.03, 0.06}};
  return content;
}

topology::Cluster hosts(const std::string& name, double line_gb_s) {
  topology::Cluster cluster;
  cluster.name = name;
  const auto measured = [](double value) {
    return topology::Quantity{value, topology::Provenance::measured, "usp calibrate"};
  };
  topology::DeviceSpec rank;
  rank.name = "rank";
  rank.bf16_tflops = rank.fp32_tflops = measured(0.05);
  rank.memory_gb_s = measured(8);
  cluster.specs = {rank};
  for (int host = 0; host < 2; ++host) {
    topology::Node node;
    node.id = host;
    node.numa_count = 1;
    node.pcie_gb_s = measured(8);
    cluster.nodes.push_back(node);
    cluster.nics.push_back({host, host, "", 0, measured(line_gb_s)});
    for (int local = 0; local < 2; ++local) {
      topology::Device device;
      device.id = 2 * host + local;
      device.node = host;
      device.local = local;
      device.numa = 0;
      device.nics = {host};
      cluster.devices.push_back(device);
      cluster.spec_of_device.push_back(0);
    }
  }
  return cluster;
}

TEST(CalibrationFile, WhatIsReadIsWrittenAgain) {
  std::vector<std::string> texts{write_calibration(two_hosts())};
  for (const std::string& name : preset_names("calibrations"))
    texts.push_back(file_or_preset("calibrations", name).text);
  for (const std::string& text : texts) {
    const std::string once = write_calibration(read_calibration_file(text, "x"));
    EXPECT_EQ(write_calibration(read_calibration_file(once, "x")), once);
    const Calibration a = parse_calibration(text, "x"), b = parse_calibration(once, "x");
    EXPECT_EQ(a.kernel.describe(), b.kernel.describe());
    const KernelShape call{8, 4, 128, 128, 4096, 2048, 4096, KernelShape::Mask::causal, 2};
    EXPECT_EQ(a.kernel.forward(call).seconds, b.kernel.forward(call).seconds);
    EXPECT_EQ(a.kernel.backward(call).seconds, b.kernel.backward(call).seconds);
    for (const double bytes : {1e4, 1e6, 1e8}) {
      EXPECT_EQ(a.comm.time(Collective::alltoall, 2, bytes).seconds,
                b.comm.time(Collective::alltoall, 2, bytes).seconds);
      EXPECT_EQ(a.comm.hop(Transport::nccl, bytes).seconds, b.comm.hop(Transport::nccl, bytes).seconds);
    }
    EXPECT_EQ(a.network.curves.size(), b.network.curves.size());
    EXPECT_EQ(a.summary(0).sources, b.summary(0).sources);
  }
}

TEST(CalibrationFile, KernelsOfSeveralBackendsAreNamedAndGivenOnce) {
  CalibrationFile content = two_hosts();
  content.links->link_class = "nvswitch";
  content.attention.backend = "hopper";
  content.attention.data.call_forward_s = 2e-5;
  content.other_attention = {content.attention};
  content.other_attention[0].backend = "mma";
  content.other_attention[0].data.fits[0].peak_tflops = 0.02;
  content.collectives[0].transport = Transport::copy_engine;
  content.products = MeasuredProducts{0.7, 0.6, 0.8, "blas", "measured"};
  const std::string text = write_calibration(content);
  EXPECT_EQ(write_calibration(read_calibration_file(text, "x")), text);
  const Calibration calibration = parse_calibration(text, "x");
  EXPECT_EQ(calibration.kernel_backend, "hopper");
  EXPECT_EQ(calibration.kernel_of(Backend::mma).data().fits[0].peak_tflops, 0.02);
  EXPECT_EQ(calibration.kernel_of(Backend::hopper).data().call_forward_s, 2e-5);
  EXPECT_EQ(calibration.gemm->share, 0.7);

  const auto refused = [](const CalibrationFile& faulty) {
    EXPECT_THROW(static_cast<void>(parse_calibration(write_calibration(faulty), "x")), InvalidInput);
  };
  CalibrationFile twice = content;
  twice.other_attention[0].backend = "hopper";
  refused(twice);
  CalibrationFile unnamed = content;
  unnamed.other_attention[0].backend = "";
  refused(unnamed);
  unnamed = content;
  unnamed.attention.backend = "";
  refused(unnamed);
  CalibrationFile curves = content;
  curves.collectives.push_back(curves.collectives[0]);
  refused(curves);
  curves.collectives.back().transport = Transport::nccl;
  EXPECT_NO_THROW(static_cast<void>(parse_calibration(write_calibration(curves), "x")));
}

TEST(CalibrationFile, FaultsOfTheNetworkAndOfHostsAreRefused) {
  CalibrationFile content = two_hosts();
  content.device.generation = "hopper";
  const std::string good = write_calibration(content);
  EXPECT_NO_THROW(static_cast<void>(parse_calibration(good, "x")));
  const std::pair<const char*, const char*> faults[] = {
      {"\"generation\": \"hopper\"", "\"generation\": \"Hopper\""},
      {"\"hosts\": 2", "\"hosts\": 1"},
      {"\"operation\": \"hop\"", "\"operation\": \"jump\""},
      {"\"share\": 0.8", "\"share\": 0.6"},
      {"\"element_bytes\": 4", "\"element_bytes\": 3"},
      {"\"class\": \"host\"", "\"class\": \"hosts\""},
      {"\"latency_s\": 0.001", "\"latency_s\": -1"},
      {"\"transport\": \"host\"", "\"transport\": \"hosts\""},
      {"\"ratio\": 0.7", "\"ratio\": 1.7"},
      {"\"time_s\": 0.0272", "\"time_s\": 27200"},
  };
  for (const auto& [from, to] : faults) {
    std::string text = good;
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, std::string(from).size(), to);
    EXPECT_THROW(static_cast<void>(parse_calibration(text, "x")), InvalidInput) << from << " -> " << to;
  }
}

TEST(CalibrationFile, TypesThatWereMeasuredArePricedWithoutARatio) {
  const AttentionCostModel kernel = calibration_from(two_hosts()).kernel;
  KernelShape call{2, 2, 64, 64, 512, 256, 512, KernelShape::Mask::causal, 4};
  const Estimate own = kernel.forward(call);
  const double scores = 2.0 * 512 * (256 + 20), per_score = 4 * 64 / 0.05e12;
  EXPECT_NEAR(own.seconds, 1e-5 + scores * per_score + 2.0 * 512 * 128 * 4 / 4e9, 1e-9);
  EXPECT_EQ(own.extrapolation, 0U);
  call.element_bytes = 2;
  const Estimate other = kernel.forward(call);
  EXPECT_NE(other.extrapolation & bits(Extrapolation::element_type), 0U);
  EXPECT_NEAR(own.seconds - other.seconds, 2 * 512 * 128 * 2 / 4e9, 1e-9);  // half the bytes of K and V
  EXPECT_EQ(kernel.merge(1e6, 64, 4).seconds, 0);
}

TEST(CalibrationFile, AMeasuredNetworkReplacesTheGuesses) {
  const Calibration measured = calibration_from(two_hosts());
  const topology::Cluster same = hosts("pair", 0.1), twice = hosts("pair", 0.2);
  const auto all_to_all = [&](const topology::Cluster& cluster, double bytes_per_peer) {
    LinkPricer links(cluster, measured);
    LinkPricer::MeshPatterns& patterns = links.patterns({1, 1, 4}, {});
    const TransferPattern pattern = links.pattern(patterns, schedule::Peers::every_ulysses, {});
    EXPECT_EQ(pattern.hosts, 2);
    EXPECT_EQ(pattern.network_active, 2);
    return links.time(pattern, schedule::Peers::every_ulysses, WriteMode::overwrite, bytes_per_peer,
                      Transport::copy_engine);
  };
  const TransferTime own = all_to_all(same, (1 << 20) / 4.0);
  EXPECT_NEAR(own.inter_node_s, 0.0141, 1e-9);
  EXPECT_NEAR(own.band, 0.04, 1e-9);
  EXPECT_EQ(own.extrapolation & bits(Extrapolation::inter_node), 0U);
  EXPECT_NEAR(all_to_all(twice, (1 << 20) / 4.0).inter_node_s, 1e-3 + 0.0131 / 2, 1e-9);

  // A ring of four ranks sends one hop per host, which was measured; two at once by the share and the line.
  LinkPricer links(same, measured);
  const auto hop = [&](const Mesh& mesh) {
    LinkPricer::MeshPatterns& patterns = links.patterns(mesh, {});
    return links
        .time(links.pattern(patterns, schedule::Peers::shift, {0, 1}), schedule::Peers::shift,
              WriteMode::overwrite, 1 << 20, Transport::copy_engine)
        .inter_node_s;
  };
  EXPECT_NEAR(hop({1, 4, 1}), 0.012, 1e-9);
  EXPECT_NEAR(hop({1, 2, 2}), 1e-3 + 2.0 * (1 << 20) / (0.95 * 0.1e9), 1e-9);
}

TEST(CalibrationFile, OnlyTheMachineThatWasMeasuredBorrowsNothing) {
  const std::string file = ::testing::TempDir() + "usp_calibration_file_test.json";
  {
    std::ofstream out(file);
    out << write_calibration(two_hosts());
  }
  const Calibration own = calibration_of(hosts("pair", 0.1), file);
  EXPECT_FALSE(own.comm.borrows());
  EXPECT_TRUE(own.network.hop.measured);
  EXPECT_TRUE(own.other_card.empty());
  EXPECT_TRUE(own.kernel.data().scaled_from.empty());
  topology::Cluster stated = hosts("pair", 0.1), more = topology::replicate(hosts("pair", 0.1), 2);
  stated.nics[0].gb_s = stated.nics[1].gb_s = {0.2, topology::Provenance::preset, "--nic"};
  for (const topology::Cluster& changed : {stated, more}) {
    const Calibration calibration = calibration_of(changed, file);
    EXPECT_FALSE(calibration.comm.borrows());
    EXPECT_FALSE(calibration.network.exchange.measured);
    EXPECT_TRUE(calibration.network.curves.empty());
  }
  const Calibration other = calibration_of(hosts("another pair", 0.1), file);
  EXPECT_TRUE(other.comm.borrows());
  EXPECT_FALSE(other.network.hop.measured);
  EXPECT_TRUE(other.network.curves.empty());
  EXPECT_GT(other.network.exchange.band(), own.network.exchange.band());
}

ScoreRow measured_row(int ring, int ulysses) {
  ScoreRow row;
  row.line = 2;
  row.world = ring * ulysses;
  row.dtype = ScoreRow::Type::fp32;
  row.batch = 1;
  row.seq = 4096;
  row.heads = 8;
  row.kv_heads = 8;
  row.head_dim = 64;
  row.ring = ring;
  row.ulysses = ulysses;
  row.layout = ring > 1 ? ScoreRow::Layout::zigzag : ScoreRow::Layout::contiguous;
  row.exchange = ScoreRow::Exchange::no_packed;
  row.library = ScoreRow::Library::usp;
  return row;
}

TEST(CalibrationFile, MeasuredCallsCorrectTheCurveTheyAreOf) {
  const CalibrationFile before = two_hosts();
  const topology::Cluster cluster = hosts("pair", 0.1);
  const auto priced = [&](const CalibrationFile& content, const ScoreRow& row) {
    const Calibration calibration = calibration_from(content);
    return ScorePredictor(cluster, calibration, "x").seconds(row);
  };
  ScoreRow alone = measured_row(1, 1), all = measured_row(1, 4), ring = measured_row(4, 1);
  alone.seconds = 1.3 * priced(before, alone);
  const CorrectedCalibration kernels = add_rows(before, cluster, {alone}, "x");
  EXPECT_NEAR(kernels.content.attention.data.fits[0].peak_tflops, 0.05 / 1.3, 1e-4);
  EXPECT_NEAR(priced(kernels.content, alone), *alone.seconds, 1e-6);
  EXPECT_EQ(kernels.content.network->curves[0].points, before.network->curves[0].points);

  all.seconds = priced(kernels.content, all) + 0.05;
  ring.seconds = priced(kernels.content, ring) + 0.01;
  const CorrectedCalibration corrected = add_rows(before, cluster, {ring, all, alone}, "x");
  ASSERT_EQ(corrected.corrections.size(), 3U);
  EXPECT_EQ(corrected.corrections[0].curve, "kernels");
  EXPECT_EQ(corrected.corrections[1].curve, "alltoall of 4 ranks on 2 hosts");
  EXPECT_GT(corrected.corrections[1].factor, 1);
  for (const ScoreRow& row : {alone, all, ring})
    EXPECT_NEAR(priced(corrected.content, row) / *row.seconds, 1, 1e-3);
  EXPECT_EQ(corrected.content.sources.size(), before.sources.size() + 3);
  EXPECT_NE(corrected.content.sources.back().note.find("times x"), std::string::npos);
  EXPECT_LT(corrected.content.network->curves[0].share, before.network->curves[0].share);
}

TEST(CalibrationFile, CallsThatDisagreeWidenTheBandOrAreRefused) {
  const CalibrationFile before = two_hosts();
  const topology::Cluster cluster = hosts("pair", 0.1);
  const Calibration calibration = calibration_from(before);
  ScoreRow one = measured_row(1, 1), two = measured_row(1, 1);
  const double priced = ScorePredictor(cluster, calibration, "x").seconds(one);
  two.line = 3;
  one.seconds = priced;
  two.seconds = 1.69 * priced;
  const CorrectedCalibration corrected = add_rows(before, cluster, {one, two}, "x");
  EXPECT_NEAR(corrected.corrections[0].factor, 1.3, 1e-3);
  EXPECT_GE(corrected.content.attention.data.fits[0].p90, 0.299);
  two.seconds = 17 * priced;
  EXPECT_THROW(static_cast<void>(add_rows(before, cluster, {one, two}, "x")), InvalidInput);
}

TEST(CalibrationFile, KernelsAboveThePeakRaiseThatOfCoresAndAreRefusedOfCards) {
  CalibrationFile content = two_hosts();
  const topology::Cluster cluster = hosts("pair", 0.1);
  ScoreRow row = measured_row(1, 1);
  row.seconds = ScorePredictor(cluster, calibration_from(content), "x").seconds(row) / 50;
  const CalibrationFile raised = add_rows(content, cluster, {row}, "x").content;
  EXPECT_GT(raised.device.bf16_tflops, content.device.bf16_tflops);
  EXPECT_EQ(raised.device.bf16_tflops, raised.attention.data.fits[0].peak_tflops);
  content.links->link_class = "nvswitch";
  EXPECT_THROW(static_cast<void>(add_rows(content, cluster, {row}, "x")), InvalidInput);
}

TEST(CalibrationFile, CallsThatTellNothingAreRefused) {
  const CalibrationFile content = two_hosts();
  const topology::Cluster cluster = hosts("pair", 0.1);
  const auto refused = [&](ScoreRow row, const topology::Cluster& on) {
    EXPECT_THROW(static_cast<void>(add_rows(content, on, {row}, "x")), InvalidInput);
  };
  ScoreRow row = measured_row(2, 2);
  row.seconds = 1;
  refused(row, cluster);
  row = measured_row(1, 4);
  refused(row, cluster);  // no time
  row.seconds = 1e-6;     // faster than its kernels
  refused(row, cluster);
  row.seconds = 1;
  refused(row, hosts("another pair", 0.1));
  row = measured_row(1, 8);
  row.seconds = 1;
  refused(row, cluster);
}

TEST(CalibrationFile, NullSaysTheSameAsAbsent) {
  const std::string whole = write_calibration(two_hosts());
  EXPECT_TRUE(read_calibration_file(whole, "x").network.has_value());
  for (const char* key : {"/cluster",
                          "/shared_cores",
                          "/links",
                          "/network",
                          "/network/interference",
                          "/other_attention",
                          "/products",
                          "/device/clock_hz",
                          "/attention/backend",
                          "/attention/library",
                          "/attention/call",
                          "/attention/sustained",
                          "/attention/element_bytes",
                          "/attention/carries_state",
                          "/attention/head_dims/0/kv_bytes_per_s",
                          "/attention/family/backward/0/serial",
                          "/collectives/0/transport",
                          "/collectives/0/groups",
                          "/point_to_point/0/ranks",
                          "/network/curves/0/groups",
                          "/attention/head_dims/0/head_dim_v",
                          "/attention/family/backward/0/head_dim_v",
                          "/attention/family/backward/0/rows",
                          "/attention/family/backward/0/mape",
                          "/attention/family/backward/0/p90",
                          "/interference/0/tick_s"}) {
    Json json = parse_json(whole, "x");
    json[Json::json_pointer(key)] = nullptr;
    EXPECT_NO_THROW(static_cast<void>(read_calibration_file(json.dump(), "x"))) << key;
    json["unheard_of"] = nullptr;
    EXPECT_THROW(static_cast<void>(read_calibration_file(json.dump(), "x")), InvalidInput);
  }
}

TEST(CalibrationFile, RanksThatShareCoresAreSaidByEveryPlan) {
  CalibrationFile content = two_hosts();
  EXPECT_TRUE(calibration_from(content).summary(0).extrapolations.empty());
  content.shared_cores = {4, 2};
  const CalibrationFile again = read_calibration_file(write_calibration(content), "x");
  const auto said = calibration_from(again).summary(0).extrapolations;
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].find("4 ranks on 2 cores"), std::string::npos) << said[0];
}

TEST(CalibrationFile, AClusterOfCardsIsNotPricedByTheCoresOfAHost) {
  const std::string file = ::testing::TempDir() + "usp_calibration_of_cores.json";
  std::ofstream(file) << write_calibration(two_hosts());
  topology::ClusterRequest request;
  request.source = "h200";
  topology::Cluster cards = topology::compose(request);
  cards.calibration = file;
  EXPECT_THROW(static_cast<void>(calibration_of(cards, "")), InvalidInput);
  topology::Cluster cores = hosts("pair", 0.1);
  cores.calibration = file;
  EXPECT_NO_THROW(static_cast<void>(calibration_of(cores, "")));
}

TEST(CalibrationFile, SharesComeFromTheLongerMessages) {
  MeasuredNetwork network{0.1, 1e-3, "measured", {}, {}, {}, {}};
  network.curves.push_back({{NetworkOperation::hop, 2, 2, 1}, 0, 0, 0, {}});
  for (const double bytes : {1e4, 1e5, 1e6, 2e6})
    network.curves[0].points.push_back({bytes, 1e-3 + 2 * bytes / (0.8 * 1e8)});
  // Of short messages alone nothing is known but what the others reach.
  network.curves.push_back(
      {{NetworkOperation::alltoall, 2, 2, 1}, 0, 0, 0, {{1e3, 1.01e-3}, {2e3, 1.02e-3}}});
  set_shares(network, 0);
  for (const NetworkCurve& curve : network.curves) {
    EXPECT_NEAR(curve.share, 0.8, 1e-9);
    EXPECT_NEAR(curve.min_share, 0.8, 1e-9);
    EXPECT_NEAR(curve.max_share, 0.8, 1e-9);
  }
  set_shares(network, 0.25);
  EXPECT_NEAR(network.curves[0].min_share, 0.64, 1e-9);
}

}  // namespace
}  // namespace usp
