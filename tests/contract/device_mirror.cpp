// SPDX-License-Identifier: Apache-2.0
#include "device_mirror.hpp"

#include "usp/kernels/cuda_backends.hpp"

#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace usp::test {
namespace {

/// Bytes from a view's first element to its last.
[[nodiscard]] i64 span_of(const kernels::ConstView& v) {
  if (v.elements() == 0) return 0;
  return ((v.batch - 1) * v.batch_stride + (v.rows - 1) * v.row_stride +
          (v.heads.size() - 1) * v.head_stride + v.width) *
         bytes_of(v.type);
}

/// Copies of host memory on the device for one call.
class Uploads {
 public:
  explicit Uploads(kernels::Memory& memory) : memory_(memory) {}
  /// What blocks of a list share is uploaded once.
  [[nodiscard]] const std::byte* bytes(const void* host, i64 count) {
    if (host == nullptr) return nullptr;
    const auto [at, is_new] = uploaded_.try_emplace({host, count});
    if (!is_new) return at->second.data();
    at->second = device::DeviceBuffer(0, count);
    memory_.from_host(at->second.data(), host, count);
    return at->second.data();
  }
  [[nodiscard]] kernels::ConstView view(kernels::ConstView v) {
    v.data = v.data == nullptr ? nullptr : bytes(v.data, span_of(v));
    return v;
  }
  /// One that goes back with bring_back().
  [[nodiscard]] kernels::View result(kernels::View v) {
    std::byte* const host = v.data;
    v.data = const_cast<std::byte*>(bytes(host, span_of(v)));
    results_.push_back({host, v.data, span_of(v)});
    return v;
  }
  [[nodiscard]] double* result(double* host, i64 count) {
    kernels::View v(reinterpret_cast<std::byte*>(host), DType::fp64, 1, 1, {0, 1}, count);
    return host == nullptr ? nullptr : reinterpret_cast<double*>(result(v).data);
  }
  [[nodiscard]] const double* doubles(const double* host, i64 count) {
    return reinterpret_cast<const double*>(bytes(host, count * 8));
  }
  void bring_back() {
    for (const Result& r : results_) memory_.to_host(r.host, r.device, r.bytes);
    memory_.synchronize();
  }

 private:
  struct Result {
    std::byte *host, *device;
    i64 bytes;
  };
  kernels::Memory& memory_;
  std::map<std::pair<const void*, i64>, device::DeviceBuffer> uploaded_;
  std::vector<Result> results_;
};

/// A scope whose per-head tables lie on the device.
struct DeviceScopeOfCall {
  DeviceScopeOfCall(const kernels::AttendScope& scope, Uploads& up) : terms(*scope.terms), moved(scope) {
    const i64 heads = scope.query_heads.end;
    terms.alibi_slopes = up.doubles(terms.alibi_slopes, heads);
    if (terms.blocks != nullptr) {
      blocks = *terms.blocks;
      blocks.admitted = reinterpret_cast<const std::uint8_t*>(
          up.bytes(blocks.admitted, heads * blocks.rows * blocks.columns));
      terms.blocks = &blocks;
    }
    moved.terms = &terms;
  }
  DeviceScopeOfCall(const DeviceScopeOfCall&) = delete;
  DeviceScopeOfCall& operator=(const DeviceScopeOfCall&) = delete;
  kernels::ScoreTerms terms;
  kernels::BlockMask blocks;
  kernels::AttendScope moved;
};

/// What a call is on the device: its views and lists uploaded.
[[nodiscard]] kernels::AttendArgs upload(const kernels::AttendArgs& a, Uploads& up,
                                         const DeviceScopeOfCall& scope) {
  kernels::AttendArgs d = a;
  d.q = up.view(a.q), d.k = up.view(a.k), d.v = up.view(a.v);
  d.o = up.result(a.o), d.lse = up.result(a.lse);
  d.sink = up.doubles(a.sink, a.scope.query_heads.end);
  d.scope = scope.moved;
  return d;
}
[[nodiscard]] kernels::AttendGradArgs upload(const kernels::AttendGradArgs& a, Uploads& up,
                                             const DeviceScopeOfCall& scope) {
  kernels::AttendGradArgs d = a;
  d.q = up.view(a.q), d.k = up.view(a.k), d.v = up.view(a.v), d.d_o = up.view(a.d_o), d.o = up.view(a.o);
  d.lse = up.view(a.lse), d.delta = up.view(a.delta);
  d.dq = up.result(a.dq), d.dk = up.result(a.dk), d.dv = up.result(a.dv);
  d.scope = scope.moved;
  return d;
}

/// Calls f(arguments on the device).
template <class Args, class F>
void with_uploads(const Args& a, Uploads& up, const F& f) {
  const DeviceScopeOfCall scope(a.scope, up);
  f(upload(a, up, scope));
}
template <class Args, class F>
void with_uploads(const kernels::BlockList<Args>& list, Uploads& up, const F& f) {
  if (list.gates != nullptr) throw std::logic_error("blocks are uploaded before the call");
  const DeviceScopeOfCall scope(list.front().scope, up);
  std::vector<Args> blocks;
  for (const Args& a : list) {
    blocks.push_back(upload(a, up, scope));
    blocks.back().scope = a.scope;
    if (a.scope.terms == list.front().scope.terms) blocks.back().scope.terms = scope.moved.terms;
  }
  f(kernels::BlockList<Args>{blocks.data(), list.count});
}

template <class Args>
[[nodiscard]] auto prepare(kernels::AttentionKernel& kernel, const Args& a) {
  return kernel.prepare(a);
}
template <class Args>
[[nodiscard]] auto prepare(kernels::AttentionKernel& kernel, const kernels::BlockList<Args>& list) {
  return kernel.prepare_blocks(list);
}

/// A step whose every run uploads, to other addresses, and brings the results back.
template <class Args>
class UploadedStep final : public kernels::PreparedStep<Args> {
 public:
  UploadedStep(kernels::Memory& memory, kernels::AttentionKernel& kernel, const Args& a)
      : kernels::PreparedStep<Args>(a), memory_(memory) {
    Uploads up(memory_);
    with_uploads(a, up, [&](const Args& device) { step_ = prepare(kernel, device); });
    memory_.synchronize();
  }

 private:
  void enqueue(const Args& a) override {
    Uploads up(memory_);
    with_uploads(a, up, [&](const Args& device) { step_->run(device); });
    up.bring_back();
  }
  kernels::Memory& memory_;
  std::unique_ptr<kernels::PreparedStep<Args>> step_;
};

class OnDevice final : public kernels::AttentionKernel {
 public:
  explicit OnDevice(const std::function<std::unique_ptr<kernels::AttentionKernel>(kernels::Memory&)>& make)
      : stream_(0), memory_(kernels::make_cuda_memory(stream_)), kernel_(make(*memory_)) {}
  [[nodiscard]] const char* name() const override { return kernel_->name(); }
  [[nodiscard]] bool rounds_results() const override { return kernel_->rounds_results(); }
  [[nodiscard]] std::vector<kernels::BackendFallback> fallbacks() const override {
    return kernel_->fallbacks();
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttend> prepare(const kernels::AttendArgs& a) override {
    return std::make_unique<UploadedStep<kernels::AttendArgs>>(*memory_, *kernel_, a);
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendGrad> prepare(
      const kernels::AttendGradArgs& a) override {
    return std::make_unique<UploadedStep<kernels::AttendGradArgs>>(*memory_, *kernel_, a);
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendBlocks> prepare_blocks(
      const kernels::AttendBlocks& list) override {
    return std::make_unique<UploadedStep<kernels::AttendBlocks>>(*memory_, *kernel_, list);
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendGradBlocks> prepare_blocks(
      const kernels::AttendGradBlocks& list) override {
    return std::make_unique<UploadedStep<kernels::AttendGradBlocks>>(*memory_, *kernel_, list);
  }
  void delta(const kernels::DeltaArgs& a) override {
    Uploads up(*memory_);
    kernels::DeltaArgs d = a;
    d.d_o = up.view(a.d_o), d.o = up.view(a.o), d.lse = up.view(a.lse);
    d.delta = up.result(a.delta);
    d.sink = up.doubles(a.sink, a.query_heads.end);
    d.d_sink = up.result(a.d_sink, a.query_heads.end);
    kernel_->delta(d);
    up.bring_back();
  }

 private:
  device::CallStream stream_;
  std::unique_ptr<kernels::Memory> memory_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
};

/// Copies of device memory on the host for one call.
class Downloads {
 public:
  explicit Downloads(kernels::Memory& memory) : memory_(memory) {}
  [[nodiscard]] std::byte* bytes(const void* device, i64 count) {
    if (device == nullptr) return nullptr;
    copies_.emplace_back(static_cast<std::size_t>(count));
    memory_.to_host(copies_.back().data(), static_cast<const std::byte*>(device), count);
    memory_.synchronize();
    return copies_.back().data();
  }
  template <class V>
  [[nodiscard]] V view(V v) {
    v.data = bytes(v.data, span_of(v));
    return v;
  }
  void bring_back(const kernels::View& host, const kernels::View& device) {
    memory_.from_host(device.data, host.data, span_of(device));
    memory_.synchronize();
  }

 private:
  kernels::Memory& memory_;
  std::vector<std::vector<std::byte>> copies_;
};

/// A step of a host kernel whose every run brings its memory over and back.
template <class Args>
class DownloadedStep final : public kernels::PreparedStep<Args> {
 public:
  DownloadedStep(kernels::Memory& memory, kernels::AttentionKernel& kernel, const Args& a)
      : kernels::PreparedStep<Args>(a), memory_(memory) {
    with_host_args(a, [&](const Args& h, Downloads&) { step_ = kernel.prepare(h); });
  }

 private:
  void enqueue(const Args& a) override {
    with_host_args(a, [&](const Args& h, Downloads& down) {
      step_->run(h);
      bring_back(h, a, down);
    });
  }
  template <class F>
  void with_host_args(const Args& a, const F& f) {
    Downloads down(memory_);
    Args h = download(a, down);
    kernels::ScoreTerms terms = *h.scope.terms;
    kernels::BlockMask blocks;
    const i64 heads = h.scope.query_heads.end;
    terms.alibi_slopes = reinterpret_cast<const double*>(down.bytes(terms.alibi_slopes, heads * 8));
    if (terms.blocks != nullptr) {
      blocks = *terms.blocks;
      blocks.admitted = reinterpret_cast<const std::uint8_t*>(
          down.bytes(blocks.admitted, heads * blocks.rows * blocks.columns));
      terms.blocks = &blocks;
    }
    h.scope.terms = &terms;
    f(h, down);
  }
  [[nodiscard]] static kernels::AttendArgs download(const kernels::AttendArgs& a, Downloads& down) {
    kernels::AttendArgs h = a;
    h.q = down.view(a.q), h.k = down.view(a.k), h.v = down.view(a.v);
    h.o = down.view(a.o), h.lse = down.view(a.lse);
    if (!a.overwrite) return h;
    kernels::fill(h.o, 0);
    kernels::fill(h.lse, -std::numeric_limits<double>::infinity());
    const auto* sinks = reinterpret_cast<const double*>(down.bytes(a.sink, a.scope.query_heads.end * 8));
    if (sinks != nullptr) kernels::host_memory().fill_heads(h.lse, sinks);
    h.overwrite = false;
    h.sink = nullptr;
    return h;
  }
  [[nodiscard]] static kernels::AttendGradArgs download(const kernels::AttendGradArgs& a, Downloads& down) {
    kernels::AttendGradArgs h = a;
    h.q = down.view(a.q), h.k = down.view(a.k), h.v = down.view(a.v), h.d_o = down.view(a.d_o);
    h.lse = down.view(a.lse), h.delta = down.view(a.delta), h.o = down.view(a.o);
    h.dq = down.view(a.dq), h.dk = down.view(a.dk), h.dv = down.view(a.dv);
    if (a.overwrite) kernels::fill(h.dq, 0);
    if (a.overwrites_dkv()) kernels::fill(h.dk, 0), kernels::fill(h.dv, 0);
    h.overwrite = h.overwrite_dkv = false;
    return h;
  }
  static void bring_back(const kernels::AttendArgs& h, const kernels::AttendArgs& a, Downloads& down) {
    down.bring_back(h.o, a.o);
    down.bring_back(h.lse, a.lse);
  }
  static void bring_back(const kernels::AttendGradArgs& h, const kernels::AttendGradArgs& a,
                         Downloads& down) {
    down.bring_back(h.dq, a.dq);
    down.bring_back(h.dk, a.dk);
    down.bring_back(h.dv, a.dv);
  }

  kernels::Memory& memory_;
  std::unique_ptr<kernels::PreparedStep<Args>> step_;
};

class FromHost final : public kernels::AttentionKernel {
 public:
  FromHost(kernels::Memory& memory, std::unique_ptr<kernels::AttentionKernel> kernel)
      : memory_(memory), kernel_(std::move(kernel)) {}
  [[nodiscard]] const char* name() const override { return kernel_->name(); }
  [[nodiscard]] kernels::Memory& memory() override { return memory_; }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttend> prepare(const kernels::AttendArgs& a) override {
    return std::make_unique<DownloadedStep<kernels::AttendArgs>>(memory_, *kernel_, a);
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendGrad> prepare(
      const kernels::AttendGradArgs& a) override {
    return std::make_unique<DownloadedStep<kernels::AttendGradArgs>>(memory_, *kernel_, a);
  }
  void delta(const kernels::DeltaArgs&) override { throw std::logic_error("a GPU kernel has its own delta"); }

 private:
  kernels::Memory& memory_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
};

class MirroredMemory final : public kernels::Memory {
 public:
  MirroredMemory() : stream_(0), memory_(kernels::make_cuda_memory(stream_)) {}
  [[nodiscard]] CUstream_st* stream() const override { return nullptr; }
  [[nodiscard]] int device() const override { return -1; }
  [[nodiscard]] std::unique_ptr<kernels::Arena> make_arena() override {
    return kernels::host_memory().make_arena();
  }
  void copy_region(kernels::ConstView from, kernels::ViewRegion source, kernels::View to,
                   kernels::ViewRegion target, WriteMode mode) override {
    Uploads up(*memory_);
    memory_->copy_region(up.view(from), source, up.result(to), target, mode);
    up.bring_back();
  }
  std::byte* pack_region(kernels::ConstView from, kernels::ViewRegion region, DType wire,
                         std::byte* payload) override {
    Uploads up(*memory_);
    const kernels::View host = payload_of(payload, wire, from, region), device = up.result(host);
    const std::byte* end = memory_->pack_region(up.view(from), region, wire, device.data);
    up.bring_back();
    return payload + (end - device.data);
  }
  const std::byte* unpack_region(const std::byte* payload, DType wire, kernels::View to,
                                 kernels::ViewRegion region, WriteMode mode) override {
    Uploads up(*memory_);
    const kernels::ConstView device = up.view(payload_of(const_cast<std::byte*>(payload), wire, to, region));
    const std::byte* end = memory_->unpack_region(device.data, wire, up.result(to), region, mode);
    up.bring_back();
    return payload + (end - device.data);
  }
  void fill(kernels::View to, double value) override {
    Uploads up(*memory_);
    memory_->fill(up.result(to), value);
    up.bring_back();
  }
  void fill_heads(kernels::View to, const double* values) override {
    Uploads up(*memory_);
    memory_->fill_heads(up.result(to), up.doubles(values, to.heads.end));
    up.bring_back();
  }
  void set_bytes(std::byte* to, int value, i64 bytes) override {
    kernels::host_memory().set_bytes(to, value, bytes);
  }
  void from_host(std::byte* to, const void* host, i64 bytes) override {
    std::memcpy(to, host, static_cast<std::size_t>(bytes));
  }
  void to_host(void* host, const std::byte* from, i64 bytes) override {
    std::memcpy(host, from, static_cast<std::size_t>(bytes));
  }
  void synchronize() override { memory_->synchronize(); }

 private:
  [[nodiscard]] static kernels::View payload_of(std::byte* payload, DType wire, const kernels::ConstView& v,
                                                const kernels::ViewRegion& region) {
    return {payload, wire, v.batch, region.rows.size(), region.heads, v.width};
  }
  device::CallStream stream_;
  std::unique_ptr<kernels::Memory> memory_;
};

}  // namespace

std::unique_ptr<kernels::AttentionKernel> on_device(
    const std::function<std::unique_ptr<kernels::AttentionKernel>(kernels::Memory&)>& make) {
  return std::make_unique<OnDevice>(make);
}
std::unique_ptr<kernels::AttentionKernel> from_host(kernels::Memory& memory,
                                                    std::unique_ptr<kernels::AttentionKernel> kernel) {
  return std::make_unique<FromHost>(memory, std::move(kernel));
}
std::unique_ptr<kernels::Memory> mirrored_cuda_memory() {
  return std::make_unique<MirroredMemory>();
}

}  // namespace usp::test
