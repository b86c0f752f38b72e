// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/gemm.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace usp {
namespace {

/// A card's row; names that begin with `prefix` share it.
struct CardRow {
  const char* prefix;
  double sustained, band;
  int multiprocessors;
  double limit_w, fp8_share;
  const char* source;
};

// Sustained shares of products without end effects (those are below). Hopper: 675 of 989 TFLOP/s, the median
// of 130 bf16 shapes of 2,048 tokens and more on one H200 at its 700 W limit
// (tests/data/measurements/gemm_h200.csv); short runs there reach 794.5 (below), .85 of it lasts. A100: 257
// of 312 (8192^3, normal data: thonking.ai, "Strangely, Matrix Multiplications on GPUs Run Faster When Given
// 'Predictable' Data"). Blackwell and MI300X: best short runs of stas00/ml-engineering compute/accelerator
// (MAMF table at 7bc7c305) times the .85 of Hopper, since both are power-limited.
// Shares of fp8 are those of the same table's best short runs in both types.
// Bands: libraries' versions and data move the rate by 5% each, cards of one kind by as much.
constexpr const char* h200_rate = "measured: 675 of 989 TFLOP/s sustained on H200 at 700 W";
constexpr const char* mamf =
    "best short run (ml-engineering, MAMF table) x .85 sustained, as measured on H200";
constexpr CardRow cards[] = {
    {"a100", .84, .15, 108, 400, .90, "257 of 312 TFLOP/s for 8192^3 of normal data (thonking.ai)"},
    {"a800", .84, .15, 108, 400, .90, "as A100, the same chip"},
    {"h100-pcie", .62, .20, 114, 350, .88, "794.5 of 989 TFLOP/s (ml-engineering), at 350 of 700 W"},
    {"h100", .70, .15, 132, 700, .88, h200_rate},
    {"h800", .70, .15, 132, 700, .88, h200_rate},
    {"h200", .70, .15, 132, 700, .91, h200_rate},
    {"gh200", .71, .20, 132, 900, .93, mamf},
    {"h20", .90, .20, 78, 400, .90, "tensor cores cut to 15%: no longer power-limited"},
    {"b200", .66, .20, 148, 1000, .98, mamf},
    {"b300", .668, .20, 148, 1200, .95, mamf},
    {"gb200", .62, .20, 148, 1200, .99, mamf},
    {"gb300", .62, .20, 148, 1400, .99, mamf},
    {"mi300x", .437, .20, 304, 750, .90, mamf},
    {"l40s", .60, .20, 142, 350, .90, "issue and power limits of Ada at 350 W"},
};

/// One launch and the drain of a product's last tiles.
constexpr double launch_s = 4e-6;
/// Of the data-sheet bandwidth: 4.3 of 4.8 TB/s measured for copies and sums on H200.
constexpr double memory_share = 0.9;
/// Elements of the reduction that pass before a tile's pipeline is full.
constexpr double reduction_start = 100;

/// Output tiles of libraries' kernels and what they reach of the largest one's rate.
struct Tile {
  double rows, columns, rate;
};
constexpr Tile tiles[] = {{256, 128, 1},  {128, 256, 1},  {128, 128, .93},
                          {64, 128, .75}, {128, 64, .75}, {64, 64, .5}};

}  // namespace

double sustained_clock(double watts) {
  // What switches takes about clock x voltage^2, and voltage about follows the clock between half and full
  // clock: clock ~ power^0.4 beside the part that runs always (121 of 700 W read on an idle H200 at full
  // clock).
  constexpr double always = 0.17, exponent = 0.4;
  return watts <= always ? 0 : std::pow((watts - always) / (1 - always), exponent);
}

GemmCard gemm_card(std::string_view device) {
  for (const CardRow& row : cards)
    if (device.substr(0, std::string_view(row.prefix).size()) == row.prefix)
      return {row.sustained, row.band, row.multiprocessors, row.fp8_share, row.limit_w, row.source};
  return {.source = "no table of matrix products names this card: a typical share"};
}

GemmCard GemmCard::slowest_of(std::int64_t cards) const {
  // Cards of one host differ by 5% and more in sustained rate (stas00/ml-engineering, "Not all accelerators
  // are created equal"); the table's rows are of one card.
  constexpr double spread = 0.05, host = 8;
  GemmCard card = *this;
  card.sustained *= 1 - spread * std::min(1.0, static_cast<double>(cards - 1) / (host - 1));
  return card;
}

GemmCard GemmCard::at_power(double limit) const {
  if (limit <= 0 || limit == limit_w) return *this;
  if (limit_w <= 0)
    throw UsageError("--power-limit: no table knows this card's own limit; give --gemm-efficiency instead");
  if (limit > limit_w)
    throw UsageError(
        fmt::format("--power-limit: {:.0f} W are above the {:.0f} W of this card's board, and change "
                    "nothing; give less, or leave it out",
                    limit, limit_w));
  const double clock = sustained_clock(limit / limit_w);
  if (clock <= 0)
    throw UsageError(
        "--power-limit: less than the card takes before it computes; give watts of the board, as nvidia-smi "
        "-q -d POWER shows");
  GemmCard card = *this;
  card.sustained *= std::min(1.0, clock);
  card.band += 0.1;
  card.source += ", at another power limit";
  return card;
}

GemmModel::GemmModel(GemmCard card, double peak_flops, double memory_bytes_s, double efficiency)
    : card_(std::move(card)), peak_flops_(peak_flops), memory_bytes_s_(memory_bytes_s), fixed_(efficiency) {}

double GemmModel::seconds(double m, double n, double k, double element, double count) const {
  if (m <= 0 || n <= 0 || k <= 0 || count <= 0) return 0;
  const double flops = 2 * m * n * k * count;
  const double bytes = element * count * (m * k + k * n + m * n);
  const double bytes_s = bytes / (memory_share * memory_bytes_s_);
  if (fixed_ > 0) return std::max(flops / (peak_flops_ * fixed_), bytes_s);
  double filled = 1;
  if (card_.multiprocessors > 0) {
    filled = 0;
    for (const Tile& tile : tiles) {
      const double blocks = std::ceil(m / tile.rows) * std::ceil(n / tile.columns) * count;
      const double waves = std::ceil(blocks / card_.multiprocessors);
      const double used = m * n * count / (tile.rows * tile.columns * waves * card_.multiprocessors);
      filled = std::max(filled, tile.rate * used);
    }
    // Stream-K and smaller last tiles recover part of what whole waves leave idle; beyond 8 waves power, not
    // idle multiprocessors, is the limit.
    const double waves = m * n * count / (256.0 * 128 * card_.multiprocessors);
    if (waves >= 1) filled = std::max(filled, 1 - .12 / waves);
  }
  const double rate = peak_flops_ * card_.sustained * filled * k / (k + reduction_start);
  return launch_s + std::max(flops / rate, bytes_s);
}

double GemmModel::efficiency(double m, double n, double k, double element, double count) const {
  return 2 * m * n * k * count / (seconds(m, n, k, element, count) * peak_flops_);
}

}  // namespace usp
