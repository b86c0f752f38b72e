// SPDX-License-Identifier: Apache-2.0
// A calibration of GPUs, from what was measured to what plans read.
#include "calibrate/assemble.hpp"
#include "calibrate/measured_cluster.hpp"

#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/runtime/calibrate.hpp"
#include "usp/topology/cluster_io.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace usp {
namespace {

using namespace measure;
using measure::Part;

Machine one_host_of_two() {
  Machine machine;
  machine.host_of = {0, 0};
  machine.hosts = {"a"};
  machine.ranks = {{0, 1}};
  machine.memory_bytes = {2e11};
  return machine;
}

KernelData card_kernel(double tflops, bool carries_state) {
  KernelData data;
  data.sm_count = 132;
  data.tile_rows = 128;
  data.carries_state = carries_state;
  data.memory_bytes_s = 4e12;
  for (const auto& [qk, v] : {std::pair(64, 64), std::pair(128, 128), std::pair(192, 128)}) {
    data.fits.push_back({qk, v, 8e-6, tflops, 0.3, 90, 2000, 0.6, 1, 0, 0, {}});
    data.backward.push_back({qk, v, 1.3, -20, 3e-5, 1, 0, 0});
  }
  return data;
}

/// Two H200 by simple laws: cudnn computes at 600 TFLOP/s, mma at 350, hopper at 500; copy engines carry
/// 380 GB/s, NCCL 320.
Measured measured_cards() {
  Measured measured{one_host_of_two(), {}, "threads", {}, {}};
  measured.scope.on_gpu = true;
  measured.scope.kernels = {"cudnn", "mma", "hopper"};
  measured.scope.transports = {Transport::copy_engine, Transport::nccl};
  measured.kernels = {{"cudnn", "9.19.1"}, {"mma", "0.1.0"}, {"hopper", "0.1.0"}};
  measured.nccl = "2.28.9";
  measured.products = "cublas 13.0.2";
  Card card;
  card.info.name = "NVIDIA H200";
  card.info.multiprocessors = 132;
  card.info.memory_bytes = i64{141} << 30;
  card.state.power_w = 700;
  card.state.nvlinks = 18;
  card.state.driver = "580.159";
  measured.card = card;
  const std::map<std::string, AttentionCostModel> models = {
      {"cudnn", AttentionCostModel(card_kernel(600, false))},
      {"mma", AttentionCostModel(card_kernel(350, true))},
      {"hopper", AttentionCostModel(card_kernel(500, true))}};
  for (const Part& part : parts_of(measured.machine, measured.scope)) {
    Rows rows;
    if (part.kind == Part::Kind::copy) rows = {{5.4e8, 1.3e-4, 0.01}, {1.1e9, 2.6e-4, 0.01}};
    if (part.kind == Part::Kind::product)
      rows = {{8192, 8192, 8192, 1.6e-3, 0.01}, {4096, 4096, 4096, 2.1e-4, 0.01}};
    if (part.kind == Part::Kind::call) rows = {{1e-5, 3e-5}, {4e-5, 7e-5}};
    if (part.kind == Part::Kind::interference)
      rows = {{0.0019, 0.002, 0.001, 0.0021}, {0.0019, 0.002, 0.002, 0.0022}};
    if (part.kind == Part::Kind::kernel)
      for (const GridCall& call : kernel_grid(part, 2, measured.scope)) {
        const KernelShape& s = call.shape;
        const AttentionCostModel& model = models.at(part.backend);
        rows.push_back({s.query_heads, s.kv_heads, s.rows, s.mean_keys, s.key_rows,
                        static_cast<double>(s.mask),
                        (part.backward ? model.backward(s) : model.forward(s)).seconds, 0.02});
      }
    if (part.kind == Part::Kind::exchange)
      for (double message = 2048; message <= 1 << 27; message *= 2)
        rows.push_back({message * part.key.messages(),
                        message / (part.transport == Transport::nccl ? 320e9 : 380e9) + 1e-5, 0.03});
    measured.results[part.name()] = rows;
  }
  return measured;
}

TEST(Calibrate, CardsHaveKernelsByBackendAndCurvesByTransport) {
  CalibrateOptions options;
  options.name = "cards";
  options.calibration_file = ::testing::TempDir() + "usp_calibrate_cards.json";
  const Measured measured = measured_cards();
  for (const Part& part : parts_of(measured.machine, measured.scope))
    EXPECT_EQ(measured.results.count(part.name()), 1U) << part.name();
  const CalibrationFile content = calibration_of_parts(measured, options);
  EXPECT_EQ(content.attention.backend, "cudnn");
  ASSERT_EQ(content.other_attention.size(), 2U);
  for (const auto& other : content.other_attention)
    EXPECT_EQ(other.data.fits.size(), 3U) << other.backend << ": both passes of every head dim";
  EXPECT_FALSE(content.attention.data.carries_state);
  EXPECT_TRUE(content.other_attention[0].data.carries_state);
  EXPECT_EQ(content.attention.library->version, "9.19.1");
  ASSERT_EQ(content.attention.data.fits.size(), 3U);
  for (const KernelFit& fit : content.attention.data.fits) EXPECT_LT(fit.p90, 1e-3) << fit.head_dim;
  EXPECT_NEAR(content.other_attention[0].data.fits[1].peak_tflops, 350, 1);
  EXPECT_EQ(content.device.generation, "hopper");
  EXPECT_EQ(content.links->link_class, "nvswitch");
  EXPECT_EQ(content.links->gb_s, 450);
  EXPECT_EQ(content.interference.size(), 2U);
  EXPECT_NEAR(content.interference[0].measured.share, 0.1, 1e-9);
  EXPECT_NEAR(content.interference[0].measured.tick_s, 1e-4, 1e-12);
  EXPECT_GT(content.products->share, 0.6);
  const std::string text = write_calibration(read_calibration_file(write_calibration(content), "x"));
  EXPECT_TRUE(write_calibration(read_calibration_file(text, "x")) == text);

  const topology::Cluster cluster = cluster_of(measured, content, options);
  EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(cluster), "x"), cluster);
  // Line rates are the data sheet's: no hop measures them.
  EXPECT_EQ(cluster.domains.front().gb_s.provenance, topology::Provenance::preset);
  EXPECT_EQ(cluster.nodes.front().pcie_gb_s.provenance, topology::Provenance::preset);
  write_file(options.calibration_file, text);
  const Calibration calibration = calibration_of(cluster);
  std::remove(options.calibration_file.c_str());
  EXPECT_FALSE(calibration.comm.borrows());
  const KernelShape call{16, 16, 128, 128, 8192, 8192, 8192, KernelShape::Mask::full, 2};
  EXPECT_GT(calibration.kernel_of(Backend::mma).forward(call).seconds,
            1.5 * calibration.kernel_of(Backend::cudnn).forward(call).seconds);
  EXPECT_EQ(calibration.kernel_of(Backend::cpu).forward(call).seconds,
            calibration.kernel.forward(call).seconds);
  const double bytes = 1 << 26;
  EXPECT_NEAR(calibration.comm.time(Collective::alltoall, 2, 2 * bytes, 1, Transport::copy_engine).seconds,
              bytes / 380e9 + 1e-5, 2e-6);
  EXPECT_NEAR(calibration.comm.time(Collective::alltoall, 2, 2 * bytes).seconds, bytes / 320e9 + 1e-5, 2e-6);
  EXPECT_NEAR(calibration.comm.hop(Transport::copy_engine, bytes).seconds, bytes / 380e9 + 1e-5, 2e-6);
}

TEST(Calibrate, ProductNamesFindTheirCards) {
  for (const auto& [product, card] : std::map<std::string, std::string>{{"NVIDIA H200", "h200-sxm"},
                                                                        {"NVIDIA H20", "h20-sxm"},
                                                                        {"NVIDIA H200 NVL", "h200-nvl"},
                                                                        {"NVIDIA H100 80GB HBM3", "h100-sxm"},
                                                                        {"NVIDIA H100 PCIe", "h100-pcie"},
                                                                        {"NVIDIA A100-SXM4-80GB", "a100-sxm"},
                                                                        {"NVIDIA L40S", "l40s"}}) {
    const topology::DevicePreset* const found = preset_of(product);
    ASSERT_NE(found, nullptr) << product;
    EXPECT_EQ(found->spec.name, card) << product;
  }
  EXPECT_EQ(preset_of("NVIDIA T4"), nullptr);
}

}  // namespace
}  // namespace usp
