// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/kernels/numeric_types.hpp"
#include "usp/runtime/npy.hpp"
#include "usp/runtime/run_print.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>

namespace usp {
namespace {

constexpr const char *out_name = "/out.npy", *lse_name = "/lse.npy", *dq_name = "/dq.npy",
                     *dk_name = "/dk.npy", *dv_name = "/dv.npy", *d_sink_name = "/d_sink.npy";

NpyType npy_type(DType type) {
  return type == DType::fp64   ? NpyType::f8
         : type == DType::fp32 ? NpyType::f4
         : type == DType::fp16 ? NpyType::f2
                               : NpyType::u2;
}

std::string shape_text(const std::vector<i64>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void write_tensor(const std::string& path, const HostTensor& tensor, DType type) {
  const kernels::ConstView view = tensor.view();
  write_npy(path, {{npy_type(type), {view.batch, view.rows, view.heads.size(), view.width}},
                   tensor.as(type).bytes()});
}

double element(const HostTensor& tensor, i64 i) {
  const std::byte* data = tensor.bytes().data() + i * bytes_of(tensor.view().type);
  const auto load = [&](auto value) {
    std::memcpy(&value, data, sizeof value);
    return value;
  };
  switch (tensor.view().type) {
    case DType::bf16:
      return to_float(load(bf16{}));
    case DType::fp16:
      return to_float(load(fp16{}));
    case DType::fp32:
      return load(0.0F);
    case DType::fp64:
      break;
  }
  return load(0.0);
}

std::string index_text(i64 i, const std::vector<i64>& shape) {
  std::vector<i64> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; i /= shape[axis]) index[axis] = i % shape[axis];
  return shape_text(index);
}

/// Results would be NaN, and the run blamed for it.
void check_finite(const std::string& path, const HostTensor& given, const HostTensor& tensor, DType dtype,
                  const std::vector<i64>& shape) {
  const i64 count = tensor.view().elements();
  for (i64 i = 0; i < count; ++i) {
    if (std::isfinite(element(tensor, i))) continue;
    const double value = element(given, i);
    throw InvalidInput(
        {path, 0, index_text(i, shape)},
        std::isfinite(value)
            ? fmt::format("{:g} is beyond the greatest number of {}; scale the tensor", value, word_of(dtype))
            : fmt::format("holds {:g}; attention needs finite numbers, mend the tensor", value));
  }
}

}  // namespace

HostTensor read_tensor(const std::string& path, DType dtype, const std::vector<i64>& shape) {
  NpyFile file(path);
  const NpyHeader& header = file.header();
  if (header.shape != shape)
    throw InvalidInput({path, 0, ""},
                       fmt::format("has the shape {}, the plan needs [batch, token, head, width] = {}",
                                   shape_text(header.shape), shape_text(shape)));
  if (header.type == NpyType::u2 && dtype != DType::bf16)
    throw InvalidInput({path, 0, "<u2"}, "holds the bits of bf16, the plan is not in bf16; save floats");
  const DType type = header.type == NpyType::f8   ? DType::fp64
                     : header.type == NpyType::f4 ? DType::fp32
                     : header.type == NpyType::f2 ? DType::fp16
                                                  : DType::bf16;
  HostTensor tensor(type, shape[0], shape[1], {0, shape[2]}, shape[3]);
  tensor.bytes() = file.read().bytes;
  HostTensor converted = type == dtype ? HostTensor() : tensor.as(dtype);
  check_finite(path, tensor, type == dtype ? tensor : converted, dtype, shape);
  return type == dtype ? tensor : converted;
}

std::vector<std::string> result_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const char* name : {out_name, lse_name, dq_name, dk_name, dv_name, d_sink_name})
    files.push_back(folder + name);
  return files;
}

void check_results_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvironmentError(fmt::format("{} cannot be made: {}", folder, error.message()));
  check_writable(folder + out_name);
}

void write_results(const std::string& folder, const AttentionPlan& plan, const Documents& documents,
                   const RunResult& run) {
  check_results_folder(folder);
  const i64 queries = documents.cu_q.back(), keys = documents.cu_k.back();
  const DType type = plan.shape.dtype;
  write_tensor(folder + out_name, assemble(run.out, queries, false), type);
  write_tensor(folder + lse_name, assemble(run.lse, queries, false), accumulator_of(type));
  if (!run.training) return;
  write_tensor(folder + dq_name, assemble(run.dq, queries, true), type);
  write_tensor(folder + dk_name, assemble(run.dk, keys, true), type);
  write_tensor(folder + dv_name, assemble(run.dv, keys, true), type);
  if (run.d_sink.empty()) return;
  NpyArray sink{{NpyType::f8, {static_cast<i64>(run.d_sink.size())}}, {}};
  sink.bytes.resize(run.d_sink.size() * sizeof(double));
  std::memcpy(sink.bytes.data(), run.d_sink.data(), sink.bytes.size());
  write_npy(folder + d_sink_name, sink);
}

}  // namespace usp
