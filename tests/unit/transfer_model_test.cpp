// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/transfer_model.hpp"

#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"
#include "usp/planner/calibration.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

namespace usp {
namespace {

constexpr double mib = 1048576;
constexpr Collective all_operations[] = {Collective::alltoall, Collective::all_gather,
                                         Collective::reduce_scatter, Collective::all_reduce};

double bus_gb_s(const Calibration& c, Collective op, int ranks, double bytes) {
  return traffic_factor(op, ranks) * bytes / c.comm.time(op, ranks, bytes).seconds * 1e-9;
}

TEST(TransferModel, EveryShippedCurveIsMonotoneInBytes) {
  const auto names = preset_names("calibrations");
  ASSERT_EQ(names.size(), 11U);
  for (const std::string& name : names) {
    const Calibration c = load_calibration(name);
    for (const Collective op : all_operations)
      for (const int ranks : {2, 3, 4, 5, 7, 8, 12, 16, 24, 72}) {
        double before = 0;
        for (double bytes = 1; bytes < 1e13; bytes *= 1.037) {
          const double now = c.comm.time(op, ranks, bytes).seconds;
          ASSERT_GE(now, before) << name << " " << word_of(op) << " " << ranks << " ranks, " << bytes
                                 << " bytes";
          before = now;
        }
      }
    for (const Transport transport : {Transport::copy_engine, Transport::nccl}) {
      double before = 0;
      for (double bytes = 1; bytes < 1e13; bytes *= 1.037) {
        const double now = c.comm.hop(transport, bytes).seconds;
        ASSERT_GE(now, before) << name << " hop " << word_of(transport) << " " << bytes;
        before = now;
      }
    }
  }
}

TEST(TransferModel, AnAllReduceThatWasNotMeasuredIsItsTwoHalves) {
  const Calibration pair = load_calibration("h200_sxm-pair"), whole = load_calibration("h200_sxm");
  const auto time = [](const Calibration& c, Collective op) { return c.comm.time(op, 2, 64 * mib); };
  const Estimate both = time(pair, Collective::all_reduce);
  EXPECT_EQ(both.seconds,
            time(pair, Collective::reduce_scatter).seconds + time(pair, Collective::all_gather).seconds);
  EXPECT_NE(both.extrapolation & bits(Extrapolation::all_reduce), 0U);
  const Estimate measured = time(whole, Collective::all_reduce);
  EXPECT_EQ(measured.extrapolation & bits(Extrapolation::all_reduce), 0U);
  EXPECT_LT(measured.seconds, both.seconds * (1 + both.band));
  EXPECT_GT(measured.seconds, both.seconds / (1 + both.band));
}

TEST(TransferModel, PublishedAllToAllBandwidthsComeBack) {
  // Bus bandwidth in GB/s by size in MiB, as nccl-tests prints it.
  const std::tuple<const char*, int, double, double> points[] = {
      {"a100_sxm", 2, 64, 138},  {"a100_sxm", 4, 4, 76},
      {"a100_sxm", 8, 4, 57},    {"a100_sxm", 8, 512, 203},
      {"h100_sxm", 8, 1, 59},    {"h100_sxm", 8, 64, 265},
      {"h200_sxm", 8, 512, 311}, {"b200_sxm", 8, 256, 537},
      {"b300_sxm", 4, 64, 413},  {"gb200-cudnn-9.22", 4, 512, 488},
      {"l40s", 2, 64, 22},       {"l40s", 4, 64, 4.61},
      {"l40s", 8, 64, 1.53},     {"rtx_pro_6000", 8, 64, 15.4}};
  for (const auto& [name, ranks, size, expected] : points)
    EXPECT_NEAR(bus_gb_s(load_calibration(name), Collective::alltoall, ranks, size * mib) / expected, 1, 0.02)
        << name << " " << ranks << " " << size;
  const Calibration a100 = load_calibration("a100_sxm");
  EXPECT_NEAR(a100.comm.time(Collective::alltoall, 8, 65536).seconds, 14.2e-6, 0.5e-6);
  EXPECT_NEAR(bus_gb_s(a100, Collective::all_gather, 8, 512 * mib), 205, 2);
  EXPECT_NEAR(bus_gb_s(load_calibration("b200_sxm"), Collective::all_reduce, 8, 512 * mib), 704, 7);
}

TEST(TransferModel, RealQuirksSurviveTheFit) {
  const Calibration a100 = load_calibration("a100_sxm");
  EXPECT_LT(bus_gb_s(a100, Collective::alltoall, 8, 4 * mib),
            0.8 * bus_gb_s(a100, Collective::alltoall, 4, 4 * mib));
  const Calibration b200 = load_calibration("b200_sxm");
  EXPECT_LT(bus_gb_s(b200, Collective::all_gather, 8, 16 * mib),
            0.75 * bus_gb_s(b200, Collective::all_gather, 4, 16 * mib));
}

TEST(TransferModel, PcieCollapsesWithTheGroup) {
  const Calibration l40s = load_calibration("l40s");
  double before = 1e9;
  for (int ranks = 2; ranks <= 16; ++ranks) {
    const double rate = bus_gb_s(l40s, Collective::alltoall, ranks, 64 * mib);
    EXPECT_LT(rate, before) << ranks;
    before = rate;
  }
  EXPECT_FALSE(l40s.comm.time(Collective::alltoall, 8, mib).extrapolated());
  EXPECT_TRUE(l40s.comm.time(Collective::alltoall, 6, mib).extrapolated());
  EXPECT_GT(l40s.comm.time(Collective::alltoall, 16, mib).band,
            l40s.comm.time(Collective::alltoall, 8, mib).band);
}

TEST(TransferModel, ASwitchHoldsItsBandwidthAboveTheLargestGroup) {
  const Calibration a100 = load_calibration("a100_sxm");
  for (const int ranks : {12, 16, 64})
    EXPECT_NEAR(bus_gb_s(a100, Collective::alltoall, ranks, 64 * mib) /
                    bus_gb_s(a100, Collective::alltoall, 8, 64 * mib),
                1, 0.01)
        << ranks;
}

TEST(TransferModel, BeyondTheLargestSizeBandwidthHoldsAndIsFlagged) {
  const Calibration h100 = load_calibration("h100_sxm");
  const Estimate last = h100.comm.time(Collective::alltoall, 8, 512 * mib);
  const Estimate beyond = h100.comm.time(Collective::alltoall, 8, 4096 * mib);
  EXPECT_FALSE(last.extrapolated());
  EXPECT_EQ(beyond.extrapolation, bits(Extrapolation::bytes));
  EXPECT_NEAR(beyond.seconds / last.seconds, 8, 1e-9);
  EXPECT_GT(beyond.band, last.band);
}

TEST(TransferModel, HopsComeFromPeerMeasurementsOrFromTwoRanks) {
  const Calibration a100 = load_calibration("a100_sxm");
  const Estimate hop = a100.comm.hop(Transport::nccl, 32 * mib);
  EXPECT_NEAR(hop.seconds, a100.comm.time(Collective::alltoall, 2, 64 * mib).seconds, 1e-12);
  EXPECT_EQ(hop.extrapolation, bits(Extrapolation::two_rank));

  const Calibration h100 = load_calibration("h100_sxm");
  const Estimate copy = h100.comm.hop(Transport::copy_engine, 64 * mib);
  EXPECT_NEAR(64 * mib / copy.seconds * 1e-9, 349, 1);
  EXPECT_FALSE(copy.extrapolated());
  EXPECT_NEAR(64 * mib / h100.comm.hop(Transport::nccl, 64 * mib).seconds * 1e-9, 178, 1);
  EXPECT_EQ(h100.comm.hop(Transport::nccl, mib).extrapolation, bits(Extrapolation::two_rank));
  EXPECT_EQ(h100.comm.hop(Transport::copy_engine, mib).extrapolation, bits(Extrapolation::bytes));
  EXPECT_LT(h100.comm.hop(Transport::copy_engine, mib).seconds, 30e-6);

  const Calibration l40s = load_calibration("l40s");
  EXPECT_GT(l40s.comm.contended_hop(8, 16 * mib).seconds,
            5 * l40s.comm.hop(Transport::nccl, 16 * mib).seconds);
}

TEST(TransferModel, OneRankIsFreeAndAMissingOperationIsNamed) {
  const TransferModel curves({{Collective::alltoall, 4, 1024, 1e-5}, {Collective::alltoall, 4, 2048, 2e-5}},
                             {}, {}, "x");
  EXPECT_EQ(curves.time(Collective::all_gather, 1, 1e6).seconds, 0);
  EXPECT_THROW(static_cast<void>(curves.time(Collective::all_gather, 2, 1e6)), MissingValue);
  EXPECT_THROW(static_cast<void>(curves.hop(Transport::nccl, 1e6)), MissingValue);
  EXPECT_TRUE(curves.time(Collective::alltoall, 2, 1500).extrapolated());
  EXPECT_THROW(TransferModel({{Collective::alltoall, 4, 1024, 0}}, {}, {}, "x"), InvalidInput);
  EXPECT_THROW(TransferModel({{Collective::alltoall, 1, 1024, 1}}, {}, {}, "x"), InvalidInput);
}

TEST(TransferModel, UserRowsReplaceTheirCurveOnly) {
  const Calibration h100 = load_calibration("h100_sxm");
  std::vector<CollectiveRow> rows;
  for (double bytes = 1024; bytes <= 64 * mib; bytes *= 2)
    rows.push_back({Collective::alltoall, 8, bytes, bytes * 1e-9});
  const TransferModel mine = h100.comm.with(rows, "mine.txt");
  EXPECT_NEAR(mine.time(Collective::alltoall, 8, mib).seconds, mib * 1e-9, 1e-12);
  EXPECT_EQ(mine.time(Collective::alltoall, 4, mib).seconds,
            h100.comm.time(Collective::alltoall, 4, mib).seconds);
  EXPECT_EQ(mine.hop(Transport::nccl, mib).seconds, h100.comm.hop(Transport::nccl, mib).seconds);
}

TEST(TransferModel, IsotonicPoolsViolatorsOnly) {
  const auto fit = isotonic({{4, 4}, {1, 1}, {2, 9}, {8, 16}});
  ASSERT_EQ(fit.size(), 4U);
  EXPECT_NEAR(fit[0].second, 1, 1e-12);
  EXPECT_NEAR(fit[1].second, 6, 1e-12);  // geometric mean of 9 and 4
  EXPECT_NEAR(fit[2].second, 6, 1e-12);
  EXPECT_NEAR(fit[3].second, 16, 1e-12);
}

TEST(TransferModel, DataSheetCurvesAreAlphaBetaAndSaySo) {
  const Calibration sheet = uncalibrated({312, 2039, 300, 5e-6, 0.5});
  const Estimate t = sheet.comm.time(Collective::alltoall, 8, 512 * mib);
  EXPECT_NEAR(t.seconds, 5e-6 + 0.875 * 512 * mib / 300e9, 1e-8);
  EXPECT_EQ(t.extrapolation, bits(Extrapolation::uncalibrated));
  EXPECT_EQ(sheet.summary(t.extrapolation).name, "uncalibrated");
  EXPECT_THROW(static_cast<void>(uncalibrated({312, 2039, 0, 5e-6, 0.5})), MissingValue);
}

TEST(TransferModel, CopyEnginesHaveCurvesOfTheirOwn) {
  const auto rows_of = [](std::optional<Transport> transport, double gb_s) {
    std::vector<CollectiveRow> rows;
    for (double bytes = 1 << 20; bytes <= 1 << 26; bytes *= 2)
      rows.push_back({Collective::alltoall, 2, bytes, bytes / (gb_s * 1e9), 1, 0, transport});
    return rows;
  };
  const auto joined = [](std::vector<CollectiveRow> a, const std::vector<CollectiveRow>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const auto gb_s = [](const TransferModel& curves, std::optional<Transport> transport) {
    return (1 << 24) / curves.time(Collective::alltoall, 2, 1 << 24, 1, transport).seconds * 1e-9;
  };
  const TransferModel both(joined(rows_of(Transport::copy_engine, 400), rows_of(Transport::nccl, 300)), {},
                           {}, "x");
  EXPECT_NEAR(gb_s(both, Transport::copy_engine), 400, 1);
  EXPECT_NEAR(gb_s(both, Transport::nccl), 300, 1);
  EXPECT_NEAR(gb_s(both, std::nullopt), 300, 1);  // what libraries take
  const TransferModel one(rows_of(Transport::copy_engine, 400), {}, {}, "x");
  EXPECT_NEAR(gb_s(one, Transport::nccl), 400, 1);
  // nccl-tests of the user replace NCCL's, and those alone.
  const TransferModel own = both.with(rows_of(std::nullopt, 200), "y");
  EXPECT_NEAR(gb_s(own, Transport::nccl), 200, 1);
  EXPECT_NEAR(gb_s(own, Transport::copy_engine), 400, 1);
  EXPECT_NEAR(gb_s(both.borrowed(0.5, 0.1), Transport::copy_engine), 200, 20);
}

}  // namespace
}  // namespace usp
