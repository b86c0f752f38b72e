// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/estimate.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp {

/// What one attention kernel call computes on one rank. Real numbers, so that means over ranks can be priced.
struct KernelShape {
  enum class Mask { full, causal, window };

  double query_heads = 0;  ///< batch rows times query heads of this rank
  double kv_heads = 0;     ///< batch rows times KV heads of this rank
  int head_dim_qk = 128;
  int head_dim_v = 128;
  double rows = 0;       ///< query rows
  double mean_keys = 0;  ///< visible pairs of one head / rows
  double key_rows = 0;   ///< key rows read
  Mask mask = Mask::causal;
  int element_bytes = 2;
};

/// The fit of one head dim. Time of a forward call =
///   launch + score_time * (tiles * tile_rows * (mean_keys + extra_keys) / SMs + serial * tile_rows * longest
///   / SMs' one)
///   + bytes of K and V / kv_gb_s,
/// where score_time = 4 * head_dim / peak, tiles = heads * ceil(rows / tile_rows) and longest is the longest
/// run of keys one tile walks. Every term grows with heads, rows and keys.
struct KernelFit {
  int head_dim = 0;    ///< of queries and keys
  int head_dim_v = 0;  ///< of values; where it differs, the fit is of that pair only
  double launch_s = 0;
  double peak_tflops = 0;  ///< rate of one long call with many heads
  double serial = 0;       ///< how much of the longest tile's own time is not hidden behind other tiles
  double extra_keys = 0;   ///< prologue, epilogue and masked part of the diagonal, in keys per row
  std::optional<double> kv_gb_s;          ///< empty: no measured call shows the reads of K and V
  std::optional<double> full_extra_keys;  ///< measured: multiplies extra_keys on a full mask
  std::int64_t rows = 0;                  ///< measured rows behind the fit; 0: taken from another kernel
  double mape = 0;                        ///< mean relative error over them
  double p90 = 0;                         ///< and its 90th percentile
  std::optional<double> window_mape;      ///< on windowed rows, which were not fitted
  std::optional<double> long_p90;  ///< p90 of long calls: their scores take three quarters of their time
};

/// Backward against forward at one head dim.
struct BackwardFit {
  int head_dim = 0;
  int head_dim_v = 0;  ///< as KernelFit::head_dim_v
  double rate_ratio =
      1;  ///< forward rate / backward rate at great length, backward counted as 2.5 times the FLOPs
  double extra_keys = 0;           ///< added to KernelFit::extra_keys, which it may lessen
  std::optional<double> launch_s;  ///< of all its kernels; empty: twice the forward's
  std::int64_t rows = 0;           ///< measured on this card; 0: a published ratio
  double mape = 0, p90 = 0;        ///< over the measured rows
  std::optional<double> serial;    ///< KernelFit::serial of its own tiles; empty: the forward's
  std::optional<double> long_p90;  ///< as KernelFit::long_p90
};

/// Errors of at least `band`, of all calls and of long ones.
template <class Fit>
void widen_fit(Fit& fit, double band) {
  if (fit.p90 < band) fit.p90 = band;
  if (fit.long_p90 && *fit.long_p90 < band) fit.long_p90 = band;
}

/// What a kernel fit measured on one card becomes on another.
struct KernelBorrowing {
  double speed = 1;  ///< time of a score there / here, over whole devices
  double softmax_speed =
      1;              ///< of the part that head_dim leaves, where it is less: it runs on the vector units
  double memory = 1;  ///< memory bandwidth here / there
  double tensor_tflops = 0;  ///< peak of this card's tensor cores: no score is faster; 0: within `speed`
  double sm_count = 0;       ///< of this card; 0: as there
  bool same_generation = false;
};

/// Everything AttentionCostModel is built from; read from a calibration file.
struct KernelData {
  std::string family;   ///< "fa2", "fa3", ...
  std::string library;  ///< name and version of what was measured
  int sm_count = 0;
  int tile_rows = 128;
  int element_bytes = 2;                           ///< of the tensors that were measured
  double call_forward_s = 0, call_backward_s = 0;  ///< of a pass of the runtime, beside kernels and transfers
  bool carries_state = false;  ///< blocks add to their result in the kernel: none is merged by another one
  double min_tokens = 512;
  double max_tokens = 16384;
  std::vector<KernelFit> fits;  ///< by head dim, rising
  std::vector<BackwardFit> backward;
  double full_gain =
      1;  ///< published: rate on a full mask / rate on a causal one, tail and diagonal taken out
  std::optional<double> full_extra_keys;  ///< published: of fits that state none of their own
  double backward_band = 0.15;            ///< of ratios that were not measured on this card
  double sustained =
      1;  ///< rate of calls back to back over that of the measured ones, between which the card rests
  double softmax_fraction =
      0;  ///< of the score time at the only measured head dim, the part that head_dim leaves
  double memory_bytes_s = 0;     ///< what a memory-bound kernel reaches
  double tensor_tflops = 0;      ///< no score runs faster than the tensor cores; 0: the fits lie below them
  std::string scaled_from;       ///< calibration whose fits were scaled; empty: measured here
  bool same_generation = false;  ///< the card that was measured runs the same kernels
  bool uncalibrated = false;

  [[nodiscard]] bool knows_multiprocessors() const { return !uncalibrated && sm_count > 0; }
};

/// Whether scores take three quarters of a call's time: its errors are then those of the rate, not of launch
/// and tail.
[[nodiscard]] constexpr bool is_long_call(double scores_s, double seconds) {
  return 4 * scores_s >= 3 * seconds;
}

/// The fits at the clock that calls back to back leave a card.
[[nodiscard]] KernelData at_sustained_clock(KernelData data);

/// The fits of one card on another.
[[nodiscard]] KernelData borrowed(KernelData data, const KernelBorrowing& by, const std::string& from);

/// Time of attention block calls and of the memory-bound kernels around them, in seconds.
class AttentionCostModel {
 public:
  AttentionCostModel() = default;
  explicit AttentionCostModel(KernelData data);

  /// Data-sheet model: FLOPs over peak times `efficiency`, nothing else; labelled uncalibrated.
  static AttentionCostModel constant(double peak_tflops, double efficiency, double memory_gb_s);

  [[nodiscard]] Estimate forward(const KernelShape& shape) const noexcept { return call(shape, false); }
  /// One backward block call (dQ, dK, dV); without prepare_backward.
  [[nodiscard]] Estimate backward(const KernelShape& shape) const noexcept { return call(shape, true); }
  /// delta = rowsum(dO * O), once per attention call: reads both, writes one fp32 per row.
  [[nodiscard]] Estimate prepare_backward(double head_rows, int head_dim_v, int element_bytes) const noexcept;
  /// Merge of one block's (out, lse) into the fp32 state: reads and writes the state, reads the block, all
  /// once.
  /// @param head_rows batch * query heads * rows; `block_bytes` per element of the block's out (2 or 4)
  [[nodiscard]] Estimate merge(double head_rows, int head_dim_v, int block_bytes) const noexcept;
  /// Kernels that move `bytes` (read plus written) in all: pack, unpack, cast, add, copy.
  [[nodiscard]] Estimate memory_bound(double bytes, int kernels = 1) const noexcept;

  [[nodiscard]] const KernelData& data() const { return data_; }
  /// Seconds that the scores of a call take on the whole device, nothing else.
  [[nodiscard]] double scores_seconds(const KernelShape& shape, bool backward) const noexcept;
  /// Mean of the fits' MAPE, weighted by rows; 0 when uncalibrated.
  [[nodiscard]] double mean_error() const;
  /// Sentences for a report: fits, their errors, what is scaled or taken from published ratios.
  [[nodiscard]] std::vector<std::string> describe() const;

 private:
  struct Rates {
    double score_s = 0;   ///< seconds per score over the whole device
    double tensor_s = 0;  ///< of it, what the tensor cores take at least
    double launch_s = 0, serial = 0, extra_keys = 0, kv_s_per_byte = 0, p90 = 0, long_p90 = 0;
    std::optional<double> full_extra_keys;
    double window_band = 0;
    double backward_ratio = 1, backward_keys = 0, backward_launch_s = 0, backward_serial = 0,
           backward_p90 = 0, backward_long_p90 = 0;
    bool backward_measured = false;
    std::uint32_t extrapolation = 0;
  };
  struct PairRates {
    int head_dim_qk = 0, head_dim_v = 0;
    Rates rates;
  };

  [[nodiscard]] Estimate call(const KernelShape& shape, bool backward) const noexcept;
  /// Of the fit, by the part that scores have in `seconds`.
  [[nodiscard]] double fit_band(const KernelShape& shape, const Rates& rates, bool backward,
                                double seconds) const noexcept;
  [[nodiscard]] double work_seconds(const KernelShape& shape, const Rates& rates, bool backward,
                                    double kv_s) const noexcept;
  [[nodiscard]] Rates rates_at(double head_dim) const;
  [[nodiscard]] Rates rates_of(const KernelFit& fit, double width, double score_s) const;
  [[nodiscard]] double score_time(double head_dim) const;
  [[nodiscard]] const Rates& rates(const KernelShape& shape) const noexcept;
  void prepare_pairs();

  KernelData data_;
  std::vector<KernelFit> square_;  ///< fits whose head dims are equal
  std::vector<Rates> rates_;       ///< index = (head_dim_qk + head_dim_v) / 2, up to max_head_dim
  std::vector<PairRates> pairs_;   ///< head dims that differ and were measured
};

}  // namespace usp
