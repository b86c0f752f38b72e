// SPDX-License-Identifier: Apache-2.0
#include "mma_bench.hpp"

#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/slice.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace usp::test {
namespace {

struct Configuration {
  std::string name;
  i64 rows;
  i64 heads, kv_heads, dqk, dv;
  bool causal;
  std::vector<i64> documents;  ///< empty: one
  double dropout = 0;
  bool rounded = true;  ///< overwrite results in bf16; otherwise a carried fp32 state
  bool deterministic = false;
  double softcap = 0;
  i64 window = 0;  ///< keys that a causal query sees, itself included; 0: all before it
};

/// 64K tokens whose lengths spread like an exponential distribution's of mean 4K; the peer's script holds the
/// same.
const std::vector<i64> packed{14000, 1500, 6800, 300,  9100, 4200, 2600, 800,
                              5200,  3400, 1900, 7336, 100,  4700, 1100, 2500};

/// Lengths at the quantiles of an exponential distribution, long and short ones mixed; the peer's script
/// makes the same.
std::vector<i64> exponential(i64 total, i64 mean) {
  const i64 count = total / mean;
  std::vector<i64> lengths;
  for (i64 i = 0; i < count; ++i) {
    const double quantile = (static_cast<double>(27 * i % count) + 0.5) / static_cast<double>(count);
    lengths.push_back(1 + static_cast<i64>(-static_cast<double>(mean) * std::log(1 - quantile)));
  }
  for (const i64 length : lengths) total -= length;
  lengths.back() += total;
  return lengths;
}

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  for (const bool causal : {false, true}) {
    const std::string kind = causal ? "causal" : "full";
    all.push_back({"hd128_" + kind + "_16k", 16384, 16, 16, 128, 128, causal, {}});
    all.push_back({"hd128_" + kind + "_32k", 32768, 16, 16, 128, 128, causal, {}});
    all.push_back({"hd128_gqa_" + kind + "_16k", 16384, 32, 8, 128, 128, causal, {}});
    all.push_back({"hd64_" + kind + "_16k", 16384, 32, 32, 64, 64, causal, {}});
    all.push_back({"hd64_gqa_" + kind + "_16k", 16384, 32, 8, 64, 64, causal, {}});
    all.push_back({"hd96_" + kind + "_16k", 16384, 16, 16, 96, 96, causal, {}});
    all.push_back({"hd192_" + kind + "_16k", 16384, 8, 8, 192, 192, causal, {}});
    all.push_back({"hd256_" + kind + "_16k", 16384, 8, 8, 256, 256, causal, {}});
  }
  all.push_back({"packed_mha_64k", 65536, 16, 16, 128, 128, true, packed});
  all.push_back({"packed_gqa_64k", 65536, 32, 8, 128, 128, true, packed});
  all.push_back({"packed_1k_mha_64k", 65536, 16, 16, 128, 128, true, exponential(65536, 1024)});
  all.push_back({"packed_1k_gqa_64k", 65536, 32, 8, 128, 128, true, exponential(65536, 1024)});
  all.push_back({"mla_192_128_causal_16k", 16384, 16, 16, 192, 128, true, {}});
  all.push_back({"hd128_causal_4k", 4096, 16, 16, 128, 128, true, {}});
  for (const i64 window : {1024, 4096}) {
    Configuration windowed{"window_" + std::to_string(window) + "_gqa_32k", 32768, 32, 8, 128, 128, true, {}};
    windowed.window = window;
    all.push_back(windowed);
  }
  Configuration c{"carried_hd128_causal_16k", 16384, 16, 16, 128, 128, true, {}};
  c.rounded = false;
  all.push_back(c);
  for (Configuration fixed : std::vector<Configuration>(all)) {
    if (!fixed.causal || fixed.rows != 16384 || !fixed.rounded) continue;
    fixed.name = "deterministic_" + fixed.name;
    fixed.deterministic = true;
    all.push_back(fixed);
  }
  c = {"dropout_hd128_causal_16k", 16384, 16, 16, 128, 128, true, {}};
  c.dropout = 0.1;
  all.push_back(c);
  for (const char* name : {"hd64_causal_16k", "hd128_gqa_causal_16k", "hd256_causal_16k"}) {
    c = *std::find_if(all.begin(), all.end(), [&](const Configuration& other) { return other.name == name; });
    c.name = "softcap_" + c.name;
    c.softcap = 50;
    all.push_back(c);
  }
  return all;
}

std::vector<schedule::Slice> slices_of(const Configuration& c) {
  std::vector<schedule::Slice> all;
  i64 at = 0;
  for (const i64 rows : c.documents.empty() ? std::vector<i64>{c.rows} : c.documents) {
    schedule::Slice s;
    s.q_row = s.k_row = s.dk_row = s.q_pos = s.k_pos = at;
    s.q_count = s.k_count = rows;
    if (c.causal) s.diff_min = 0;
    if (c.window > 0) s.diff_max = c.window - 1;
    all.push_back(s);
    at += rows;
  }
  return all;
}

/// Random numbers of about a normal distribution's size, a block repeated.
class DeviceView {
 public:
  DeviceView(kernels::Memory& memory, DType type, i64 rows, i64 heads, i64 width, bool random)
      : arena_(memory.make_arena()) {
    view_ = kernels::View(nullptr, type, 1, rows, {0, heads}, width);
    const i64 bytes = view_.elements() * bytes_of(type);
    arena_->reserve(bytes);
    view_.data = arena_->data();
    if (!random) return;
    static const std::vector<std::uint16_t> block = [] {
      std::vector<std::uint16_t> b((1u << 22) + 77);
      std::uint64_t x = 88172645463325252u;
      for (std::uint16_t& v : b) {
        float sum = 0;
        for (int i = 0; i < 4; ++i) {
          x ^= x << 13, x ^= x >> 7, x ^= x << 17;
          sum += static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
        }
        const float scaled = sum * 1.73f;
        std::uint32_t bits;
        static_assert(sizeof bits == sizeof scaled);
        __builtin_memcpy(&bits, &scaled, sizeof bits);
        v = static_cast<std::uint16_t>(bits >> 16);
      }
      return b;
    }();
    const i64 chunk = static_cast<i64>(block.size()) * 2;
    for (i64 at = 0; at < bytes; at += chunk)
      memory.from_host(view_.data + at, block.data(), std::min(chunk, bytes - at));
  }
  [[nodiscard]] kernels::View view() const { return view_; }

 private:
  std::unique_ptr<kernels::Arena> arena_;
  kernels::View view_;
};

/// What comes first and is not timed: two runs, and more until they have lasted so many seconds.
double median_seconds(const device::CallStream& stream, double warm_up, const std::function<void()>& work) {
  const auto timed = [&] {
    const device::Event begin(stream.device(), device::EventUse::timing),
        end(stream.device(), device::EventUse::timing);
    begin.record(stream.get());
    work();
    end.record(stream.get());
    return device::seconds_between(begin, end);
  };
  double warm = 0;
  for (int i = 0; i < 2 || warm < warm_up; ++i) warm += timed();
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(timed());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bench(Backend backend, const Configuration& c, double warm_up) {
  device::CallStream stream(0);
  const std::unique_ptr<kernels::Memory> memory = kernels::make_cuda_memory(stream);
  const auto kernel = kernels::factory_of(backend).make(*memory, c.deterministic);
  const DType result = c.rounded ? DType::bf16 : DType::fp32;
  const auto queries = [&](DType type, i64 width, bool random) {
    return DeviceView(*memory, type, c.rows, c.heads, width, random);
  };
  const auto keys = [&](DType type, i64 width, bool random) {
    return DeviceView(*memory, type, c.rows, c.kv_heads, width, random);
  };
  const DeviceView q = queries(DType::bf16, c.dqk, true), k = keys(DType::bf16, c.dqk, true),
                   v = keys(DType::bf16, c.dv, true), d_o = queries(DType::bf16, c.dv, true);
  const DeviceView o = queries(result, c.dv, false), lse = queries(DType::fp32, 1, false),
                   delta = queries(DType::fp32, 1, false), dq = queries(result, c.dqk, false),
                   dk = keys(result, c.dqk, false), dv = keys(result, c.dv, false);
  const std::vector<schedule::Slice> slices = slices_of(c);
  double pairs = 0;
  for (const schedule::Slice& s : slices) pairs += static_cast<double>(schedule::area(s));
  kernels::ScoreTerms terms;
  terms.scale = 1 / std::sqrt(static_cast<double>(c.dqk));
  terms.dropout = c.dropout;
  terms.softcap = c.softcap;
  const kernels::AttendScope scope{{0, c.heads},  static_cast<int>(c.heads / c.kv_heads),
                                   slices.data(), static_cast<i64>(slices.size()),
                                   &terms,        {}};
  const kernels::AttendArgs first{q.view(), k.view(), v.view(), o.view(), lse.view(), scope, true};
  kernels::AttendArgs carried = first;
  carried.overwrite = c.rounded;
  const auto attend = kernel->prepare(carried);
  run_once(*kernel, first);
  if (!c.rounded)
    for (const DeviceView* x : {&dq, &dk, &dv}) memory->fill(x->view(), 0);
  const double forward = median_seconds(stream, warm_up, [&] { attend->run(carried); });
  if (!c.rounded) run_once(*kernel, first);
  kernels::AttendGradArgs grad_args{q.view(),  k.view(),  v.view(),  d_o.view(), lse.view(), {},
                                    dq.view(), dk.view(), dv.view(), scope,      c.rounded};
  if (kernel->wants_o())
    grad_args.o = o.view();
  else
    grad_args.delta = delta.view();
  const auto grad = kernel->prepare(grad_args);
  const auto delta_of = [&] {
    if (!kernel->wants_o()) kernel->delta({d_o.view(), o.view(), lse.view(), delta.view(), {0, c.heads}});
  };
  const double backward = median_seconds(stream, warm_up, [&] { delta_of(), grad->run(grad_args); });
  const double flops = 2 * pairs * static_cast<double>(c.heads * (c.dqk + c.dv));
  std::printf("%-34s fwd %8.3f ms %6.1f  bwd %8.3f ms %6.1f TF/s\n", c.name.c_str(), forward * 1e3,
              flops / forward * 1e-12, backward * 1e3, 2.5 * flops / backward * 1e-12);
  std::fflush(stdout);
}

}  // namespace

int run_bench(Backend backend, const std::string& filter, double warm_up) {
  const std::vector<Configuration> all = configurations();
  std::istringstream parts(filter.empty() ? "," : filter);
  for (std::string part; std::getline(parts, part, ',');) {
    const bool whole =
        std::any_of(all.begin(), all.end(), [&](const Configuration& c) { return c.name == part; });
    for (const Configuration& c : all)
      if (whole ? c.name == part : c.name.find(part) != std::string::npos) bench(backend, c, warm_up);
  }
  return 0;
}

}  // namespace usp::test
