// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/calibrate.hpp"

#include "calibrate/assemble.hpp"
#include "calibrate/exchange.hpp"
#include "calibrate/measured_cluster.hpp"
#include "calibrate/partial_file.hpp"
#include "calibrate/timer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/comm/threads.hpp"
#include "usp/device/device.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/kernel_fit.hpp"
#include "usp/planner/links.hpp"
#include "usp/topology/cluster_io.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>

namespace usp {
namespace {

using namespace measure;
using measure::Part;

/// Ranks 0, 2 and 1, 3 on two hosts, as mpirun --map-by node places them.
Machine two_hosts() {
  Machine machine;
  machine.host_of = {0, 1, 0, 1};
  machine.hosts = {"a", "b"};
  machine.ranks = {{0, 2}, {1, 3}};
  machine.memory_bytes = {8e9, 4e9};
  return machine;
}

TEST(Calibrate, EveryRankIsInOneGroupOfItsHosts) {
  const Machine machine = two_hosts();
  EXPECT_EQ(role_of({NetworkOperation::alltoall, 1, 2, 1}, machine, 3).group, (std::vector<int>{1, 3}));
  EXPECT_EQ(role_of({NetworkOperation::alltoall, 2, 1, 2}, machine, 3).group, (std::vector<int>{2, 3}));
  EXPECT_TRUE(role_of({NetworkOperation::alltoall, 2, 1, 1}, machine, 3).group.empty());
  EXPECT_EQ(role_of({NetworkOperation::alltoall, 2, 2, 1}, machine, 0).group, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(role_of({NetworkOperation::hop, 2, 2, 1}, machine, 2).group, (std::vector<int>{2, 3}));
  EXPECT_TRUE(role_of({NetworkOperation::hop, 2, 1, 1}, machine, 2).group.empty());
}

TEST(Calibrate, PartsHaveNamesOfTheirOwnAndCoverBothKindsOfLinks) {
  std::set<std::string> names;
  const std::vector<Part> parts = parts_of(two_hosts(), {});
  for (const Part& part : parts) EXPECT_TRUE(names.insert(part.name()).second) << part.name();
  EXPECT_EQ(names.count("alltoall of 2 ranks on 1 host, 1 group at once"), 1U);
  EXPECT_EQ(names.count("alltoall of 1 rank on 2 hosts, 2 groups at once"), 1U);
  EXPECT_EQ(names.count("hop of 2 ranks on 2 hosts, 1 group at once"), 1U);
  for (const Part& part : parts_of(two_hosts(), {.quick = true}))
    EXPECT_EQ(names.count(part.name()), 1U) << part.name();
}

TEST(Calibrate, HostsOfSlowerLinesAreToldApartByPairs) {
  Measured measured;
  measured.machine.host_of = {0, 1, 2};
  measured.machine.hosts = {"a", "b", "c"};
  measured.machine.ranks = {{0}, {1}, {2}};
  const auto pairs_at = [&](double with_c_gb_s) {
    for (const Part& part : parts_of(measured.machine, measured.scope))
      if (part.between_pair())
        measured.results[part.name()] = {
            {1024, 1e-4, 0}, {2048, 2048 / ((part.second_host == 2 ? with_c_gb_s : 0.1) * 1e9), 0}};
  };
  pairs_at(0.025);
  EXPECT_EQ(measured.results.size(), 3U);
  EXPECT_EQ(host_lines(measured, 0.05), (std::vector<double>{0.1, 0.1, 0.025}));
  pairs_at(0.095);  // no more than they repeat
  EXPECT_EQ(host_lines(measured, 0.105), (std::vector<double>{0.105, 0.105, 0.105}));
  EXPECT_EQ(role_between(0, 2, measured.machine, 2).group, (std::vector<int>{0, 2}));
  EXPECT_TRUE(role_between(0, 2, measured.machine, 1).group.empty());
}

/// What arrives is what the peers sent, whatever the exchange.
TEST(Calibrate, ExchangesMoveWhatTheyAreNamedFor) {
  constexpr i64 bytes = 1024;
  comm::run_threads(4, {}, [&](comm::Communicator& control) {
    Machine machine;
    machine.host_of = {0, 0, 0, 0};
    machine.hosts = {"a"};
    machine.ranks = {{0, 1, 2, 3}};
    machine.memory_bytes = {1e9};
    const auto plane = comm::make_message_data_plane(control);
    ExchangeMemory memory(*plane, kernels::host_memory());
    memory.reserve(4 * bytes, 4 * bytes);
    const auto sent = [&](i64 i) -> float& { return reinterpret_cast<float*>(memory.sent())[i]; };
    const auto got = [&](i64 i) { return reinterpret_cast<const float*>(memory.received())[i]; };
    const auto role = [&](NetworkOperation operation) {
      return role_of({operation, 1, 4, 1}, machine, control.rank());
    };
    constexpr i64 part = bytes / 4, run = 128;
    for (i64 i = 0; i < 4 * part; ++i) sent(i) = static_cast<float>(1000 * control.rank() + i / run % 4);
    control.barrier();
    Exchange(*plane, memory, role(NetworkOperation::alltoall), bytes).run();
    for (i64 i = 0; i < 4 * part; ++i)
      ASSERT_EQ(got(i), static_cast<float>(1000 * (i / part) + control.rank()));
    Exchange(*plane, memory, role(NetworkOperation::hop), bytes).run();
    ASSERT_EQ(got(0), static_cast<float>(1000 * ((control.rank() + 3) % 4)));
    control.barrier();
    for (i64 i = 0; i < 4 * part; ++i) {
      sent(i) = static_cast<float>(control.rank() + 1);
      reinterpret_cast<float*>(memory.received())[i] = 0;
    }
    control.barrier();
    Exchange(*plane, memory, role(NetworkOperation::reduce_scatter), bytes).run();
    ASSERT_EQ(got(control.rank() * part), static_cast<float>(10 - control.rank() - 1));  // of the others
  });
}

/// Rows of all parts by simple laws: the network carries 0.1 GB/s after a millisecond.
Measured measured_pair() {
  Measured measured{two_hosts(), {}, "mpi", {{"cpu-test", "1"}}, {}};
  KernelData kernel;
  kernel.sm_count = 1;
  kernel.tile_rows = 1;
  kernel.element_bytes = 4;
  kernel.memory_bytes_s = 1e10;
  kernel.fits = {{64, 64, 1e-5, 0.05, 0, 20, 4, 0.5, 1, 0, 0, {}},
                 {128, 128, 1e-5, 0.06, 0, 20, 4, 0.5, 1, 0, 0, {}}};
  kernel.backward = {{64, 64, 1.2, -3, 2e-5, 1, 0, 0}, {128, 128, 1.2, -3, 2e-5, 1, 0, 0}};
  const AttentionCostModel model(kernel);
  for (const Part& part : parts_of(measured.machine, measured.scope)) {
    Rows rows;
    if (part.kind == Part::Kind::copy) rows = {{2e6, 2e-4, 0.01}, {8e6, 1e-3, 0.01}};
    if (part.kind == Part::Kind::interference)
      rows = {{0.009, 0.010, 0.004, 0.012}, {0.009, 0.010, 0.010, 0.017}};
    if (part.kind == Part::Kind::product) rows = {{256, 256, 256, 1e-3, 0.01}, {512, 512, 512, 6e-3, 0.01}};
    if (part.kind == Part::Kind::call) rows = {{1e-4, 1.2e-4}, {2e-4, 2.5e-4}};
    if (part.kind == Part::Kind::kernel)
      for (const GridCall& call : kernel_grid(part, 4, measured.scope)) {
        const KernelShape& s = call.shape;
        rows.push_back({s.query_heads, s.kv_heads, s.rows, s.mean_keys, s.key_rows,
                        static_cast<double>(s.mask),
                        (part.backward ? model.backward(s) : model.forward(s)).seconds, 0.02});
      }
    if (part.kind == Part::Kind::exchange)
      for (double message = 1024; message <= 1 << 20; message *= 2) {
        const double load = part.key.hosts > 1 ? part.key.messages_per_host() * message / 0.1e9 + 1e-3
                                               : part.key.messages() * message / 5e9 + 1e-5;
        rows.push_back({message * part.key.messages(), load, 0.03});
      }
    measured.results[part.name()] = rows;
  }
  return measured;
}

TEST(Calibrate, PartsBecomeCurvesFitsAndShares) {
  CalibrateOptions options;
  options.name = "pair";
  options.calibration_file = ::testing::TempDir() + "usp_calibrate_pair.json";
  const Measured measured = measured_pair();
  const CalibrationFile content = calibration_of_parts(measured, options);
  ASSERT_TRUE(content.network.has_value());
  EXPECT_NEAR(content.network->gb_s / 0.1, 1, 0.2);
  EXPECT_NEAR(content.network->latency_s, 1e-3, 2e-5);
  for (const NetworkCurve& curve : content.network->curves) EXPECT_NEAR(curve.share, 1, 0.2);
  EXPECT_NEAR(*content.network->interference, 0.7, 1e-9);
  EXPECT_NEAR(content.repeatability.from_1mib, 0.03, 1e-9);
  const KernelData& kernels = content.attention.data;
  ASSERT_EQ(kernels.fits.size(), 2U);
  EXPECT_NEAR(kernels.fits[0].peak_tflops, 0.05, 1e-4);
  EXPECT_LT(kernels.fits[1].p90, 1e-4);
  EXPECT_NEAR(kernels.call_forward_s, 2e-5, 1e-12);
  EXPECT_NEAR(kernels.call_backward_s, 5e-5, 1e-12);
  EXPECT_NEAR(content.products->share, 2 * 512.0 * 512 * 512 / 6e-3 * 1e-12 / content.device.bf16_tflops,
              1e-9);
  EXPECT_EQ(write_calibration(read_calibration_file(write_calibration(content), "x")),
            write_calibration(content));

  const topology::Cluster cluster = cluster_of(measured, content, options);
  EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(cluster), "x"), cluster);
  EXPECT_EQ(cluster.devices[1].node, 1);
  EXPECT_EQ(*cluster.specs[0].memory_bytes.value, 2e9);
  write_file(options.calibration_file, write_calibration(content));
  const Calibration calibration = calibration_of(cluster);
  std::remove(options.calibration_file.c_str());
  EXPECT_FALSE(calibration.comm.borrows());
  LinkPricer links(cluster, calibration);
  LinkPricer::MeshPatterns& patterns = links.patterns({1, 1, 4}, {});
  const TransferTime time =
      links.time(links.pattern(patterns, schedule::Peers::every_ulysses, {}), schedule::Peers::every_ulysses,
                 WriteMode::overwrite, 1 << 18, Transport::copy_engine);
  EXPECT_NEAR(time.inter_node_s, 1e-3 + 4.0 * (1 << 18) / 0.1e9, 1e-6);
  EXPECT_EQ(time.extrapolation, 0U);
}

/// A clock by which every call takes as long as it says, as one of a GPU may while the host runs ahead.
class CallClock : public SpanClock {
 public:
  void call() { ++calls_; }
  void settle() override { ++settled; }
  void begin() override { calls_ = 0; }
  double end() override { return calls_ * seconds; }
  double seconds = 2e-3;
  int settled = 0;

 private:
  int calls_ = 0;
};

TEST(Calibrate, TheTimerTakesTheClockOfTheDevice) {
  const auto control = comm::make_serial_communicator();
  CallClock clock;
  Timer timer(*control, clock, {20e-3, 3, 4, 0.4, 1 << 20});
  const Sample sample = timer.measure([&] { clock.call(); });
  EXPECT_NEAR(sample.seconds, 2e-3, 1e-12);
  EXPECT_NEAR(sample.spread, 0, 1e-12);
  EXPECT_GE(clock.settled, 5);  // before every sample
}

/// What the time cuts off a grid lies between what was measured.
TEST(Calibrate, TheFirstCallsOfAGridSpanShortAndLong) {
  for (const bool on_gpu : {false, true}) {
    Scope scope;
    scope.on_gpu = on_gpu;
    const Part part{.kind = Part::Kind::kernel, .head_dim = 128, .head_dim_v = 128};
    const auto grid = kernel_grid(part, 2, scope);
    double least = grid.front().shape.rows, most = least;
    for (std::size_t i = 0; i < least_grid_calls; ++i) {
      least = std::min(least, grid[i].shape.rows);
      most = std::max(most, grid[i].shape.rows);
    }
    EXPECT_GE(most, 8 * least);
    EXPECT_GE(most, on_gpu ? 16384 : 512);
    EXPECT_LE(least, on_gpu ? 512 : 64);
  }
}

TEST(Calibrate, AFitNamesTheCallThatItMissesMost) {
  Measured measured = measured_pair();
  for (auto& [name, rows] : measured.results)
    if (name.find("kernel of head dim 128 backward") != std::string::npos) rows[0][6] *= 2;
  const auto misses = misses_of(measured, calibration_of_parts(measured, {}));
  ASSERT_EQ(misses.size(), 4U);
  for (const KernelMiss& miss : misses) {
    const bool changed = miss.backward && miss.head_dim == 128;
    EXPECT_EQ(changed, std::abs(miss.off) > 0.2) << miss.call << ' ' << miss.off;
    if (changed) {
      EXPECT_EQ(miss.call, "4/1 x 64 causal");
    }
  }
}

/// Ends the work at the n-th part, as a signal would.
class Stop : public WorkProgress {
 public:
  explicit Stop(std::int64_t at) : at_(at) {}
  void reached(std::int64_t done, std::int64_t /*total*/, const char* /*units*/) override {
    if (done == at_) throw EnvironmentError("stopped here");
  }

 private:
  std::int64_t at_;
};

CalibrateOptions quick_options(const char* file) {
  CalibrateOptions options;
  options.quick = true;
  options.max_seconds = 0.1;
  options.ranks = 2;
  options.partial = ::testing::TempDir() + file;
  return options;
}

TEST(Calibrate, ASecondStartGoesOnWithWhatIsFinished) {
  CalibrateOptions options = quick_options("usp_calibrate_resume.partial");
  options.restart = true;
  Stop stop(3);
  options.progress = &stop;
  EXPECT_THROW(static_cast<void>(calibrate(options)), EnvironmentError);
  options.restart = false;
  options.progress = nullptr;
  std::string told;
  options.note = [&](const std::string& text) { told = text; };
  const auto result = calibrate(options);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->resumed, 3U);
  EXPECT_GT(result->parts, 3U);
  EXPECT_NE(told.find("goes on with 3 of"), std::string::npos);
  EXPECT_EQ(result->cluster.devices.size(), 2U);
  EXPECT_EQ(result->calibration.collectives.size(), 3U);

  // Of other ranks the parts are another machine's.
  options.ranks = 1;
  try {
    static_cast<void>(calibrate(options));
    ADD_FAILURE() << "parts of two ranks served one";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("hosts of the ranks '0, 0', and this start has '0'"),
              std::string::npos)
        << error.what();
  }
  options.restart = true;
  const auto one = calibrate(options);
  EXPECT_EQ(one->resumed, 0U);
  EXPECT_TRUE(one->calibration.collectives.empty());
  std::remove(options.partial.c_str());
}

TEST(Calibrate, AnInterruptSaysWhatIsKept) {
  CalibrateOptions options = quick_options("usp_calibrate_interrupt.partial");
  options.restart = true;
  int asked = 0;
  options.interrupted = [&] { return ++asked > 20; };  // in the first parts
  try {
    static_cast<void>(calibrate(options));
    ADD_FAILURE() << "it went on";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("interrupted after "), std::string::npos) << text;
    EXPECT_NE(text.find(options.partial + " keeps them"), std::string::npos) << text;
  }
  options.interrupted = nullptr;
  options.restart = false;
  EXPECT_GT(calibrate(options)->resumed, 0U);
  std::remove(options.partial.c_str());
}

TEST(Calibrate, ALineFarFromWhatMessagesReachedIsRefused) {
  CalibrateOptions options;
  options.nic_gb_s = 1e6;
  EXPECT_THROW(static_cast<void>(calibration_of_parts(measured_pair(), options)), UsageError);
  options.nic_gb_s = 0.2;
  EXPECT_EQ(calibration_of_parts(measured_pair(), options).network->gb_s, 0.2);
}

TEST(Calibrate, RanksThatShareCoresMeasureNoInterference) {
  Measured measured = measured_pair();
  measured.machine.own_core = {true, true, false, false};
  for (const Part& part : parts_of(measured.machine, measured.scope))
    EXPECT_NE(part.kind, Part::Kind::interference) << part.name();
  const CalibrationFile content = calibration_of_parts(measured, {});
  EXPECT_EQ(content.interference.front().measured.source, "not measured: ranks share cores");
  EXPECT_EQ(content.shared_cores->ranks, 4);
  EXPECT_EQ(content.shared_cores->cores, 2);
  EXPECT_FALSE(content.network->interference.has_value());
}

TEST(Calibrate, WhereTheTimeIsUpRefinementsAreLeftOut) {
  CalibrateOptions options = quick_options("usp_calibrate_time.partial");
  options.ranks = 4;
  options.max_seconds = 1e-3;
  options.restart = true;
  std::string told;
  options.note = [&](const std::string& text) { told += text; };
  const auto result = calibrate(options);
  EXPECT_NE(told.find("the time was up before"), std::string::npos) << told;
  for (const CollectiveCurve& curve : result->calibration.collectives) EXPECT_EQ(curve.ranks, 4);
  std::remove(options.partial.c_str());
}

TEST(Calibrate, PartialFilesThatNoMeasurementWroteAreRefused) {
  const std::vector<Part> parts = parts_of(two_hosts(), {.quick = true});
  const Settings settings{{"kernel", "cpu"}};
  PartialFile content{settings, {}};
  for (const auto& [name, rows] : measured_pair().results)
    if (name == "copies" || name == "hop of 1 rank on 2 hosts, 1 group at once") content.results[name] = rows;
  const std::string good = write_partial(content);
  EXPECT_EQ(read_partial(good, "x", settings, parts).results, content.results);
  const std::pair<const char*, const char*> faults[] = {
      {"usp.calibration_partial", "usp.calibration"},
      {"\"kernel\":\"cpu\"", "\"kernel\":\"mma\""},
      {"\"kernel\":\"cpu\"", "\"core\":\"cpu\""},
      {"\"copies\"", "\"copy\""},
      {"[2000000.0,0.0002,0.01]", "[2000000.0,0.0002]"},
      {"[2000000.0,0.0002,0.01]", "[2000000.0,0.0,0.01]"},
      {"[2000000.0,0.0002,0.01]", "[2000000.0,-1,0.01]"},
      {"[[1024.0,", "[[2048.0,"},
      {"{\"format\"", "{{\"format\""},
  };
  for (const auto& [from, to] : faults) {
    std::string text = good;
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, std::string(from).size(), to);
    EXPECT_THROW(static_cast<void>(read_partial(text, "x", settings, parts)), InvalidInput)
        << from << " -> " << to;
  }
}

TEST(Calibrate, UnknownKernelsAndMixesOfHostsAndGpusAreRefused) {
  CalibrateOptions options = quick_options("usp_calibrate_none.partial");
  options.kernels = {"abacus"};
  EXPECT_THROW(static_cast<void>(calibrate(options)), UsageError);
  options.kernels = {"cpu", "mma"};  // of a host and of GPUs
  EXPECT_THROW(static_cast<void>(calibrate(options)), UsageError);
  options.kernels = {"cpu"};
  options.transports = {Transport::nccl};
  EXPECT_THROW(static_cast<void>(calibrate(options)), UsageError);
  options.transports.clear();
  options.kernels = {"mma"};
  if (device::device_count() == 0) {
    EXPECT_THROW(static_cast<void>(calibrate(options)), EnvironmentError);
  }
}

}  // namespace
}  // namespace usp
