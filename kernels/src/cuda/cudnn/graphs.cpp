// SPDX-License-Identifier: Apache-2.0
// The one file that includes cudnn-frontend: a minute and a gigabyte to compile.
#include "graphs.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/backend.hpp"

#include <fmt/format.h>

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <unordered_map>

namespace cudnn_frontend {
// Named by cudnn-frontend, which finds all of cuDNN through it.
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace usp::kernels::cudnn {
namespace {

namespace fe = cudnn_frontend;

/// In the order of GraphMemory as PlannedSdpa::run lists it.
enum Uid : int64_t { uid_q = 1, uid_k, uid_v, uid_o, uid_stats, uid_d_o, uid_dq, uid_dk, uid_dv };
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

void expects_success(fe::error_t status, const char* what) {
  if (status.is_bad())
    throw EnvironmentError(fmt::format("{} of cuDNN failed: {}", what, status.get_message()));
}
void expects_success(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw EnvironmentError(fmt::format("{} failed: {}", what, fe::detail::get_error_string(status)));
}

class Handle {
 public:
  Handle() { expects_success(fe::detail::create_handle(&handle_), "cudnnCreate"); }
  ~Handle() { fe::detail::destroy_handle(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  [[nodiscard]] cudnnHandle_t get() const { return handle_; }
  void use(CUstream_st* stream) {
    if (stream == stream_) return;
    expects_success(fe::detail::set_stream(handle_, stream), "cudnnSetStream");
    stream_ = stream;
  }

 private:
  CUstream_st* stream_ = nullptr;  ///< null: the default stream
  cudnnHandle_t handle_ = nullptr;
};

/// Describes the tensors of a key to a graph.
class Describer {
 public:
  Describer(const GraphKey& key, fe::graph::Graph& graph) : key_(key), graph_(graph) {}
  TensorPtr queries(Uid uid, const Strides& s, i64 width) {
    return tensor(uid, key_.q_heads, key_.q_rows, width, s);
  }
  TensorPtr keys(Uid uid, const Strides& s, i64 width) {
    return tensor(uid, key_.kv_heads, key_.k_rows, width, s);
  }
  TensorPtr stats() {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid_stats)
                             .set_dim({key_.batch, key_.q_heads, key_.q_rows, 1})
                             .set_stride(stats_stride())
                             .set_data_type(fe::DataType_t::FLOAT));
  }
  void shape_queries(const TensorPtr& t, Uid uid, const Strides& s, i64 width) {
    shape(t, uid, key_.q_heads, key_.q_rows, width, s);
  }
  void shape_keys(const TensorPtr& t, Uid uid, const Strides& s, i64 width) {
    shape(t, uid, key_.kv_heads, key_.k_rows, width, s);
  }
  void shape_stats(const TensorPtr& t) {
    t->set_output(true)
        .set_uid(uid_stats)
        .set_dim({key_.batch, key_.q_heads, key_.q_rows, 1})
        .set_stride(stats_stride())
        .set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  [[nodiscard]] std::vector<int64_t> stats_stride() const {
    return {key_.q_heads * key_.q_rows, key_.q_rows, 1, 1};
  }
  TensorPtr tensor(Uid uid, i64 heads, i64 rows, i64 width, const Strides& s) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({key_.batch, heads, rows, width})
                             .set_stride({s.batch, s.head, s.row, 1}));
  }
  void shape(const TensorPtr& t, Uid uid, i64 heads, i64 rows, i64 width, const Strides& s) {
    t->set_output(true)
        .set_uid(uid)
        .set_dim({key_.batch, heads, rows, width})
        .set_stride({s.batch, s.head, s.row, 1});
  }

  const GraphKey& key_;
  fe::graph::Graph& graph_;
};

template <class Attributes>
void set_common(Attributes& a, const GraphKey& key) {
  a.set_attn_scale(static_cast<float>(key.scale));
  a.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
  if (key.right_bound >= 0) a.set_diagonal_band_right_bound(static_cast<int>(key.right_bound));
  if (key.left_bound > 0) a.set_diagonal_band_left_bound(static_cast<int>(key.left_bound));
}

void add_forward(const GraphKey& key, fe::graph::Graph& graph) {
  Describer d(key, graph);
  fe::graph::SDPA_attributes options;
  options.set_name("attend").set_generate_stats(true);
  set_common(options, key);
  const auto [o, stats] = graph.sdpa(d.queries(uid_q, key.q, key.dqk), d.keys(uid_k, key.k, key.dqk),
                                     d.keys(uid_v, key.v, key.dv), options);
  d.shape_queries(o, uid_o, key.o, key.dv);
  d.shape_stats(stats);
}

void add_backward(const GraphKey& key, fe::graph::Graph& graph) {
  Describer d(key, graph);
  fe::graph::SDPA_backward_attributes options;
  options.set_name("attend_grad");
  set_common(options, key);
  const auto [dq, dk, dv] = graph.sdpa_backward(
      d.queries(uid_q, key.q, key.dqk), d.keys(uid_k, key.k, key.dqk), d.keys(uid_v, key.v, key.dv),
      d.queries(uid_o, key.o, key.dv), d.queries(uid_d_o, key.d_o, key.dv), d.stats(), options);
  d.shape_queries(dq, uid_dq, key.dq, key.dqk);
  d.shape_keys(dk, uid_dk, key.dk, key.dqk);
  d.shape_keys(dv, uid_dv, key.dv_out, key.dv);
}

class PlannedSdpa final : public Graph {
 public:
  PlannedSdpa(std::shared_ptr<Handle> handle, std::shared_ptr<fe::graph::Graph> graph, Direction direction)
      : handle_(std::move(handle)),
        graph_(std::move(graph)),
        last_(direction == Direction::forward ? uid_stats : uid_dv) {
    expects_success(graph_->get_workspace_size(workspace_bytes_), "the workspace query");
    for (int64_t uid = uid_q; uid <= last_; ++uid) slots_[uid] = &pointers_[uid];
  }
  [[nodiscard]] i64 workspace_bytes() const override { return workspace_bytes_; }
  void run(const GraphMemory& m, void* workspace, CUstream_st* stream) override {
    const void* const by_uid[] = {nullptr, m.q, m.k, m.v, m.o, m.stats, m.d_o, m.dq, m.dk, m.dv};
    for (int64_t uid = uid_q; uid <= last_; ++uid) *slots_[uid] = const_cast<void*>(by_uid[uid]);
    handle_->use(stream);
    expects_success(graph_->execute(handle_->get(), pointers_, workspace), "an attention call");
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<fe::graph::Graph> graph_;
  int64_t last_;                                 ///< uid; all from uid_q on are given
  std::unordered_map<int64_t, void*> pointers_;  ///< as cuDNN takes them
  void** slots_[uid_dv + 1] = {};                ///< into pointers_
  int64_t workspace_bytes_ = 0;
};

class LoadedLibrary final : public Library {
 public:
  LoadedLibrary() : handle_(std::make_shared<Handle>()) {}
  PlannedGraph plan(const GraphKey& key) override {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(key.type == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (key.direction == Direction::forward)
      add_forward(key, *graph);
    else
      add_backward(key, *graph);
    fe::error_t status = graph->build(handle_->get(), {fe::HeurMode_t::A});
    if (status.is_bad()) return {nullptr, fmt::format("cuDNN has no plan: {}", status.get_message())};
    return {std::make_shared<PlannedSdpa>(handle_, graph, key.direction), {}};
  }
  [[nodiscard]] std::string version() const override {
    const std::size_t code = fe::detail::get_backend_version();
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }

 private:
  std::shared_ptr<Handle> handle_;
};

/// Once in a process; stays loaded.
void load_cudnn() {
  static void* const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    throw EnvironmentError(fmt::format(
        "libcudnn.so.9 cannot be loaded; install cuDNN 9 (the PyPI package nvidia-cudnn-cu13 holds it in "
        "nvidia/cudnn/lib) and name its folder in LD_LIBRARY_PATH, or use the {} backend",
        word_of(fallback_of(Backend::cudnn))));
  fe::cudnn_dlhandle = library;
}

}  // namespace

std::unique_ptr<Library> open_library() {
  load_cudnn();
  return std::make_unique<LoadedLibrary>();
}

}  // namespace usp::kernels::cudnn
