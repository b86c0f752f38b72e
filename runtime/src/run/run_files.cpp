// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/runtime/npy.hpp"
#include "usp/runtime/run_print.hpp"

#include <cstring>
#include <filesystem>

namespace usp {
namespace {

NpyType npy_type(DType type) {
  return type == DType::fp64   ? NpyType::f8
         : type == DType::fp32 ? NpyType::f4
         : type == DType::fp16 ? NpyType::f2
                               : NpyType::u2;
}

std::string shape_text(const std::vector<i64>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

void write_tensor(const std::string& path, const HostTensor& tensor, DType type) {
  const ConstView view = tensor.view();
  write_npy(
      path,
      {npy_type(type), {view.batch, view.rows, view.heads.size(), view.width}, tensor.as(type).bytes()});
}

}  // namespace

HostTensor read_tensor(const std::string& path, DType dtype, const std::vector<i64>& shape) {
  NpyArray array = read_npy(path);
  if (array.shape != shape)
    throw InvalidInput({path, 0, ""},
                       "has the shape " + shape_text(array.shape) +
                           ", the plan needs [batch, token, head, width] = " + shape_text(shape));
  if (array.type == NpyType::u2 && dtype != DType::bf16)
    throw InvalidInput({path, 0, "<u2"}, "holds the bits of bf16, the plan is not in bf16; save floats");
  const DType type = array.type == NpyType::f8   ? DType::fp64
                     : array.type == NpyType::f4 ? DType::fp32
                     : array.type == NpyType::f2 ? DType::fp16
                                                 : DType::bf16;
  HostTensor tensor(type, shape[0], shape[1], {0, shape[2]}, shape[3]);
  tensor.bytes() = std::move(array.bytes);
  return type == dtype ? tensor : tensor.as(dtype);
}

void write_results(const std::string& folder, const AttentionPlan& plan, const Documents& documents,
                   const CallRun& run) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvironmentError(folder + " cannot be made: " + error.message());
  const i64 queries = documents.cu_q.back(), keys = documents.cu_k.back();
  const DType type = plan.shape.dtype;
  write_tensor(folder + "/out.npy", assemble(run.out, queries, false), type);
  write_tensor(folder + "/lse.npy", assemble(run.lse, queries, false), accumulator_of(type));
  if (!run.training) return;
  write_tensor(folder + "/dq.npy", assemble(run.dq, queries, true), type);
  write_tensor(folder + "/dk.npy", assemble(run.dk, keys, true), type);
  write_tensor(folder + "/dv.npy", assemble(run.dv, keys, true), type);
  if (run.d_sink.empty()) return;
  NpyArray sink{NpyType::f8, {static_cast<i64>(run.d_sink.size())}, {}};
  sink.bytes.resize(run.d_sink.size() * sizeof(double));
  std::memcpy(sink.bytes.data(), run.d_sink.data(), sink.bytes.size());
  write_npy(folder + "/d_sink.npy", sink);
}

}  // namespace usp
