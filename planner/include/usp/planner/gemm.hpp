// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace usp {

/// Sustained clock of a card bound by power over the one at which its rates were measured. @param watts power
/// limit over that of the measurement, per multiprocessor where their number differs. 0: too little to
/// compute.
[[nodiscard]] double sustained_clock(double watts);

/// How matrix products run on a card for as long as a training step lasts.
struct GemmCard {
  double sustained =
      0.7;             ///< share of the data-sheet peak of large products, random data, at the power limit
  double band = 0.25;  ///< relative half width of that share
  int multiprocessors = 0;  ///< 0: not known, so that tiles fill the card evenly
  double fp8_share = 0.9;   ///< sustained share of the fp8 peak over that of the 16-bit peak
  double limit_w = 0;       ///< power limit of its data sheet; 0: not known
  std::string source;

  /// Of so many cards that wait for each other, the slowest.
  [[nodiscard]] GemmCard slowest_of(std::int64_t cards) const;
  /// The card under another power limit. Throws UsageError where its own is not known. @param limit 0: its
  /// own
  [[nodiscard]] GemmCard at_power(double limit) const;
};

/// Of a card by its name ("h100-sxm"); unknown cards get a typical share with a wide band.
[[nodiscard]] GemmCard gemm_card(std::string_view device);

/// Time of matrix products by shape. A product takes a launch and the longer of its arithmetic and its bytes;
/// its arithmetic runs at the card's sustained share of the peak, less the multiprocessors that its last wave
/// of output tiles leaves idle and the start of its reduction.
class GemmModel {
 public:
  GemmModel() = default;
  /// @param efficiency > 0: the share of the peak at which every product runs whose bytes do not take longer
  GemmModel(GemmCard card, double peak_flops, double memory_bytes_s, double efficiency = 0);

  /// Seconds of (m x k) times (k x n). @param element bytes of an element; @param count products launched
  /// together (grouped)
  [[nodiscard]] double seconds(double m, double n, double k, double element, double count = 1) const;
  /// Share of the peak that the product reaches.
  [[nodiscard]] double efficiency(double m, double n, double k, double element, double count = 1) const;
  [[nodiscard]] double peak_flops() const { return peak_flops_; }
  [[nodiscard]] double band() const { return fixed_ > 0 ? 0.05 : card_.band; }
  [[nodiscard]] bool fixed() const { return fixed_ > 0; }
  [[nodiscard]] const GemmCard& card() const { return card_; }

 private:
  GemmCard card_;
  double peak_flops_ = 0, memory_bytes_s_ = 0, fixed_ = 0;
};

}  // namespace usp
