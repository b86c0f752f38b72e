// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Units live in names (`_bytes`, `_s`, `_gb_s` = 1e9 bytes per second). These parse and print what people
/// write.
namespace usp {

/// Whole numbers that a double holds exactly, and so may be written with a unit.
inline constexpr std::int64_t max_whole = std::int64_t{1} << 53;
/// Data rates in GB/s, in which no time or sum of times leaves the range of a double.
inline constexpr double min_rate_gb_s = 1e-3, max_rate_gb_s = 1e9;

/// Quantities of a machine that have a bound: a value beyond it was written in another unit.
enum class BoundedQuantity {
  byte_rate,     ///< at least 1 MB/s
  flop_rate,     ///< at least 1 GFLOP/s
  memory_bytes,  ///< at least 1 MiB
  latency_s,     ///< at most 1 s
};

/// Problem, why and remedy where `si`, in SI base units or bytes, is beyond the bound; empty otherwise.
[[nodiscard]] std::string beyond_machines(double si, BoundedQuantity quantity);

/// "4096", "128k" (131072), "1M" (1048576), "1.5M": binary multiples, as sequence lengths are meant.
/// Throws UsageError naming `flag`, also for less than one token and more than `most`.
[[nodiscard]] std::int64_t parse_tokens(std::string_view text, std::string_view flag,
                                        std::int64_t most = max_whole);

/// "80GB" (decimal), "80GiB" (binary), plain bytes. Throws UsageError naming `flag`.
[[nodiscard]] std::int64_t parse_bytes(std::string_view text, std::string_view flag);

/// Line rates as people write them, returned in GB/s (1e9 bytes per second) in one direction: "400G",
/// "400Gb/s" and "400Gbit" are bits (50 GB/s); "50GB/s" and "46GiB/s" are bytes. A bare number is refused: 50
/// could be either. Throws UsageError naming `flag`, also beyond min_rate_gb_s and max_rate_gb_s.
[[nodiscard]] double parse_line_rate_gb_s(std::string_view text, std::string_view flag);

[[nodiscard]] std::string format_bytes(double bytes);       ///< "1.50 GiB"
[[nodiscard]] std::string format_seconds(double seconds);   ///< "12.3 ms", "1h 10m"
[[nodiscard]] std::string format_flop_rate(double flop_s);  ///< "494 TFLOP/s", "12.3 GFLOP/s", "1.2 PFLOP/s"
[[nodiscard]] std::string format_byte_rate(double bytes_s, int digits = 0);  ///< "64 GB/s", "420 MB/s"
[[nodiscard]] std::string format_count(std::int64_t count);                  ///< "8.03B", "596M", "512"
[[nodiscard]] std::string format_tokens(std::int64_t tokens);                ///< "128K", "1M", "57826"
[[nodiscard]] std::string format_fixed(double value, int digits);
[[nodiscard]] std::string format_percent(double fraction, int digits = 1);

/// Integer or decimal number in full; throws UsageError naming `flag` otherwise.
[[nodiscard]] std::int64_t parse_integer(std::string_view text, std::string_view flag);
[[nodiscard]] double parse_number(std::string_view text, std::string_view flag);

}  // namespace usp
