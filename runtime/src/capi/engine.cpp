// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"
#include "tensors.hpp"

#include "usp/kernels/cuda_backends.hpp"
#include "usp/runtime/make_kernel.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace usp::capi {
namespace {

constexpr std::size_t first_engine =
    offsetof(usp_engine_desc, compare_inputs) + sizeof(usp_engine_desc::compare_inputs);
constexpr std::size_t first_call = offsetof(usp_call, untracked) + sizeof(usp_call::untracked);
/// Forwards that no backward follows should be dropped; of more than these the oldest are forgotten.
constexpr std::size_t max_forwards_in_flight = std::size_t{1} << 16;

usp_engine_desc engine_defaults() {
  auto desc = zero<usp_engine_desc>();
  desc.ring_outer = 1;
  desc.device = -1;
  return desc;
}

Mesh mesh_of(const usp_engine_desc& desc) {
  require(desc.ring >= 1 && desc.ring_outer >= 1 && desc.ring % desc.ring_outer == 0,
          fmt::format("ring is {}, ring_outer {}; both must be 1 or more, and ring_outer must divide ring",
                      desc.ring, desc.ring_outer));
  require(desc.ring <= max_degree, fmt::format("ring is {}; it must be 1 to {}", desc.ring, max_degree));
  const Mesh mesh{desc.ring_outer, desc.ring / desc.ring_outer, desc.ulysses};
  check_mesh(mesh);
  return mesh;
}

std::unique_ptr<comm::Communicator> group_of_all(comm::Communicator& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks);
}

Backend backend_of(const usp_engine_desc& desc) {
  return listed_backend(desc.backend, "desc.backend");
}

std::optional<device::CallStream> make_stream(const usp_engine_desc& desc) {
  if (desc.device < 0) return std::nullopt;
  (void)device::device_info(desc.device);
  return std::optional<device::CallStream>(std::in_place, desc.device);
}

std::unique_ptr<kernels::Memory> make_memory(const usp_engine_desc& desc,
                                             std::optional<device::CallStream>& stream,
                                             kernels::Allocator& allocator) {
  const bool given = desc.allocator.allocate != nullptr;
  if (stream)
    return given ? kernels::make_cuda_memory(*stream, allocator) : kernels::make_cuda_memory(*stream);
  return given ? kernels::make_host_memory(allocator) : nullptr;
}

comm::MeshCommunicator make_ranks(const usp_engine_desc& desc, comm::Communicator& world, const Mesh& mesh,
                                  const std::optional<device::CallStream>& stream) {
  const comm::AxisTransports transports{
      enumerator(desc.ring_transport, Transport::nccl, "desc.ring_transport"),
      enumerator(desc.ulysses_transport, Transport::nccl, "desc.ulysses_transport")};
  if (!stream) return {world, mesh};
  return {world, mesh, *stream, transports};
}

/// What forward and backward have in common.
struct LayerCall {
  LayerCall(const usp_plan* plan, const usp_batch* batch, const usp_attention_inputs* given_inputs,
            const usp_call& call)
      : prepared(given(batch, "batch").batch->prepare(given(plan, "plan").layer)),
        tensors(prepared->plan(), static_cast<i64>(prepared->q_tokens().size()),
                static_cast<i64>(prepared->kv_tokens().size())),
        inputs(tensors.inputs(given_inputs, mask)) {
    require(inputs.dropout_seed == 0, "inputs.dropout_seed is set; the seed of a step is usp_batch_create's");
    inputs.dropout_seed = batch->dropout_seed;
    inputs.layer = call.layer;
  }
  ~LayerCall() = default;
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;

  std::shared_ptr<const Prepared> prepared;
  Tensors tensors;
  kernels::BlockMask mask;
  AttentionInputs inputs;
};

usp_call taken_call(const usp_call* call) {
  const usp_call own = taken(call, first_call, zero<usp_call>(), "call");
  require(own.untracked == 0 || (own.forward_id == 0 && own.retain == 0),
          "call.untracked is set beside forward_id or retain; leave those 0, nothing is remembered");
  require(own.layer >= 0, fmt::format("call.layer is {}; layers are numbered from 0", own.layer));
  return own;
}

device::StreamRef stream_of(const usp_call& call) {
  return {static_cast<device::StreamHandle>(call.stream)};
}

usp_status lend(usp_engine* engine, usp_comm usp_engine::*which, usp_comm** comm) {
  return guarded([&] {
    given(comm, "comm");
    *comm = &(given(engine, "engine").*which);
  });
}

}  // namespace
}  // namespace usp::capi

usp_engine::usp_engine(usp::comm::Communicator& world, const usp::Mesh& mesh, const usp_engine_desc& desc)
    : allocator(desc.allocator),
      stream(usp::capi::make_stream(desc)),
      own_memory(usp::capi::make_memory(desc, stream, allocator)),
      kernel(usp::make_kernel(usp::capi::backend_of(desc),
                              own_memory == nullptr ? usp::kernels::host_memory() : *own_memory,
                              desc.deterministic != 0)),
      ranks(usp::capi::make_ranks(desc, world, mesh, stream)),
      batch_group(usp::capi::group_of_all(world)),
      batches(batch_group == nullptr ? world : *batch_group, mesh, ranks.data_plane().reach()),
      executor(ranks.data_plane(), *kernel,
               {.compare_inputs = desc.compare_inputs != 0,
                .forward_only = desc.forward_only != 0,
                .release_scratch = desc.release_scratch != 0}),
      forward_only(desc.forward_only != 0),
      ring{&ranks.ring(), nullptr},
      ulysses{&ranks.ulysses(), nullptr},
      unsaved(executor.memory()) {}

using namespace usp::capi;

usp_status usp_engine_desc_init(usp_engine_desc* desc, size_t size) {
  return guarded([&] { start(desc, size, first_engine, engine_defaults(), "desc"); });
}

usp_status usp_engine_create(const usp_engine_desc* desc, usp_comm* comm, usp_engine** engine) {
  return guarded([&] {
    const usp_engine_desc own = taken(desc, first_engine, engine_defaults(), "desc");
    given(engine, "engine");
    require(own.device >= -1,
            fmt::format("desc.device is {}; give a GPU's ordinal, or -1 for the host", own.device));
    require((own.allocator.allocate == nullptr) == (own.allocator.release == nullptr),
            "desc.allocator has one of allocate and release; give both, or none for the heap");
    require(own.release_scratch == 0 || own.allocator.allocate != nullptr,
            "desc.release_scratch is set without desc.allocator, which the memory goes back to; give one");
    auto made = std::make_unique<usp_engine>(*given(comm, "comm").communicator, mesh_of(own), own);
    made->ring.job = made->ulysses.job = &job_of(*comm);
    *engine = made.release();
  });
}

void usp_engine_destroy(usp_engine* engine) {
  delete engine;
}

usp_status usp_engine_ring_comm(usp_engine* engine, usp_comm** comm) {
  return lend(engine, &usp_engine::ring, comm);
}

usp_status usp_engine_ulysses_comm(usp_engine* engine, usp_comm** comm) {
  return lend(engine, &usp_engine::ulysses, comm);
}

usp_status usp_engine_notes(usp_engine* engine, const char** notes) {
  return guarded([&] {
    usp_engine& e = given(engine, "engine");
    given(notes, "notes");
    e.notes = fmt::format("{}", fmt::join(e.ranks.data_plane().notes(), "\n"));
    *notes = e.notes.c_str();
  });
}

usp_status usp_engine_check(usp_engine* engine) {
  return guarded([&] { given(engine, "engine").ranks.data_plane().check(); });
}

usp_status usp_engine_agree(usp_engine* engine, const char* name, uint64_t value) {
  return guarded([&] {
    usp_engine& e = given(engine, "engine");
    e.batches.agree(&given(name, "name"), value);
  });
}

int64_t usp_engine_workspace_bytes(const usp_engine* engine) {
  return engine == nullptr ? -1 : engine->executor.workspace_bytes();
}

usp_status usp_call_init(usp_call* call, size_t size) {
  return guarded([&] { start(call, size, first_call, zero<usp_call>(), "call"); });
}

usp_status usp_attend(usp_engine* engine, const usp_plan* plan, const usp_batch* batch,
                      const usp_attention_inputs* inputs, const usp_tensor* out, const usp_tensor* lse,
                      usp_call* call) {
  return guarded([&] {
    usp_engine& e = given(engine, "engine");
    const usp_call own = taken_call(call);
    const LayerCall layer(plan, batch, inputs, own);
    const usp::kernels::View result = layer.tensors.out(given(out, "out"), "out.dtype");
    const usp::device::StreamRef stream = stream_of(own);
    if (own.saved == nullptr) {
      e.executor.forward(layer.prepared, layer.inputs, result, layer.tensors.lse(lse), e.unsaved, stream);
      call->forward_id = 0;
      return;
    }
    usp::SavedState saved(usp::MemoryRef{static_cast<std::byte*>(own.saved), own.saved_bytes});
    e.executor.forward(layer.prepared, layer.inputs, result, layer.tensors.lse(lse), saved, stream);
    if (own.untracked != 0) return;
    if (e.forwards.size() == max_forwards_in_flight) e.forwards.erase(e.forwards.begin());
    e.forwards.emplace(++e.last_forward, std::move(saved));
    call->forward_id = e.last_forward;
  });
}

usp_status usp_attend_grad(usp_engine* engine, const usp_plan* plan, const usp_batch* batch,
                           const usp_attention_inputs* inputs, const usp_tensor* out, const usp_tensor* d_out,
                           const usp_attention_gradients* gradients, usp_call* call) {
  return guarded([&] {
    usp_engine& e = given(engine, "engine");
    const usp_call own = taken_call(call);
    const LayerCall layer(plan, batch, inputs, own);
    const auto run = [&](usp::SavedState& saved) {
      e.executor.backward(layer.prepared, layer.inputs, layer.tensors.out(given(out, "out"), "out.dtype"),
                          layer.tensors.out(given(d_out, "d_out"), "d_out.dtype"),
                          layer.tensors.gradients(gradients), saved, stream_of(own));
    };
    const usp::MemoryRef memory{static_cast<std::byte*>(own.saved), own.saved_bytes};
    if (own.untracked != 0) {
      usp::SavedState saved(memory);
      saved.assume(layer.prepared);
      run(saved);
      return;
    }
    const auto forward = e.forwards.find(own.forward_id);
    require(forward != e.forwards.end(),
            fmt::format("forward_id {} is no forward in flight of this engine: its backward has run, it was "
                        "dropped, or it had no saved memory; run usp_attend again, or set call.retain for a "
                        "second backward",
                        own.forward_id));
    usp::SavedState& saved = forward->second;
    saved.move_to(memory);
    run(saved);
    if (own.retain != 0)
      saved.retain();
    else
      e.forwards.erase(forward);
  });
}

void usp_forward_drop(usp_engine* engine, uint64_t forward_id) {
  if (engine != nullptr) engine->forwards.erase(forward_id);
}

usp_status usp_batch_record(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, int32_t pass,
                            usp_pass_record* record) {
  return guarded([&] {
    const auto prepared = given(batch, "batch").batch->prepare(given(plan, "plan").layer);
    put_record(given(engine, "engine").executor.record(*prepared, pass_of(pass)), record);
  });
}
