/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that share an engine, from C: microbatches in flight and recomputation give, bit for bit, the
 * gradients of a usp_attention of its own (which c_api_test.c holds against a dense softmax). */
#include "c_api_checks.h"

enum { LAYERS = 3, MICROBATCHES = 2 };

typedef struct layer {
  usp_tensor q, k, v, d_out, out, dq, dk, dv;
  size_t out_bytes, dq_bytes, dk_bytes, dv_bytes;
  usp_call call;
  void* saved_block;
} layer;

static __thread uint32_t state = 1; /* of one rank */
/* On a boundary of 256 bytes, within `block`. */
static void* aligned(size_t bytes, void** block) {
  *block = malloc(bytes + 256);
  CHECK(*block != NULL);
  return (char*)*block + (256 - (uintptr_t)*block % 256) % 256;
}

static usp_tensor tensor(int64_t rows, int64_t heads, int64_t width, size_t* bytes, int random) {
  const size_t count = (size_t)(B * rows * heads * width);
  float* data = calloc(count + 1, sizeof(float));
  CHECK(data != NULL);
  for (size_t i = 0; random && i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = (float)((double)(state >> 8) / 8388608.0 - 1.0);
  }
  if (bytes != NULL) *bytes = count * sizeof(float);
  return usp_tensor_contiguous(data, USP_FP32, rows, heads, width);
}

static void make_layer(layer* l, const usp_batch_sizes* sizes, int number) {
  memset(l, 0, sizeof *l);
  l->q = tensor(sizes->q_rows, H, D, NULL, 1);
  l->k = tensor(sizes->kv_rows, HK, D, NULL, 1);
  l->v = tensor(sizes->kv_rows, HK, DV, NULL, 1);
  l->d_out = tensor(sizes->q_rows, H, DV, NULL, 1);
  l->out = tensor(sizes->q_rows, H, DV, &l->out_bytes, 0);
  l->dq = tensor(sizes->q_rows, H, D, &l->dq_bytes, 0);
  l->dk = tensor(sizes->kv_rows, HK, D, &l->dk_bytes, 0);
  l->dv = tensor(sizes->kv_rows, HK, DV, &l->dv_bytes, 0);
  OK(usp_call_init(&l->call, sizeof l->call));
  l->call.saved = aligned((size_t)sizes->saved_bytes, &l->saved_block);
  l->call.saved_bytes = sizes->saved_bytes;
  l->call.layer = number;
}

static void free_layer(layer* l) {
  usp_tensor* all[] = {&l->q, &l->k, &l->v, &l->d_out, &l->out, &l->dq, &l->dk, &l->dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]->data);
  free(l->saved_block);
}

static usp_attention_inputs inputs_of(const layer* l) {
  usp_attention_inputs in;
  OK(usp_attention_inputs_init(&in, sizeof in));
  in.q = l->q, in.k = l->k, in.v = l->v;
  return in;
}

static usp_attention_gradients gradients_of(const layer* l) {
  usp_attention_gradients g;
  OK(usp_attention_gradients_init(&g, sizeof g));
  g.dq = l->dq, g.dk = l->dk, g.dv = l->dv;
  return g;
}

static void forward(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, layer* l) {
  const usp_attention_inputs in = inputs_of(l);
  OK(usp_attend(engine, plan, batch, &in, &l->out, NULL, &l->call));
  CHECK(l->call.forward_id != 0);
}

static usp_status backward(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, layer* l) {
  const usp_attention_inputs in = inputs_of(l);
  const usp_attention_gradients g = gradients_of(l);
  return usp_attend_grad(engine, plan, batch, &in, &l->out, &l->d_out, &g, &l->call);
}

/* The same call of a usp_attention. */
static void expect_alone(const usp_plan* plan, usp_comm* comm, const int64_t* cu, int64_t documents,
                         layer* l) {
  layer alone = *l;
  usp_attention* attention = NULL;
  size_t bytes;
  OK(usp_attention_create(plan, comm, &attention));
  OK(usp_attention_set_batch(attention, cu, documents));
  usp_batch_sizes rows;
  memset(&rows, 0, sizeof rows);
  OK(usp_attention_q_tokens(attention, NULL, &rows.q_rows));
  OK(usp_attention_kv_tokens(attention, NULL, &rows.kv_rows));
  alone.out = tensor(rows.q_rows, H, DV, &bytes, 0), alone.dq = tensor(rows.q_rows, H, D, &bytes, 0);
  alone.dk = tensor(rows.kv_rows, HK, D, &bytes, 0), alone.dv = tensor(rows.kv_rows, HK, DV, &bytes, 0);
  const usp_attention_inputs in = inputs_of(&alone);
  const usp_attention_gradients g = gradients_of(&alone);
  OK(usp_attention_forward(attention, &in, &alone.out, NULL));
  OK(usp_attention_backward(attention, &in, &alone.d_out, &g));
  CHECK(memcmp(alone.out.data, l->out.data, l->out_bytes) == 0);
  CHECK(memcmp(alone.dq.data, l->dq.data, l->dq_bytes) == 0);
  CHECK(memcmp(alone.dk.data, l->dk.data, l->dk_bytes) == 0);
  CHECK(memcmp(alone.dv.data, l->dv.data, l->dv_bytes) == 0);
  free(alone.out.data), free(alone.dq.data), free(alone.dk.data), free(alone.dv.data);
  usp_attention_destroy(attention);
}

/* An allocator that counts, and can be out of memory or off its boundary. */
typedef struct counter {
  int64_t blocks, bytes, calls;
  int empty;
  size_t offset;
} counter;

static void* count_allocate(void* context, int64_t bytes, int32_t device, void* stream) {
  counter* c = context;
  CHECK(bytes > 0 && device == -1 && stream == NULL);
  if (c->empty) return NULL;
  void* block;
  char* memory = (char*)aligned((size_t)bytes + 512, &block) + 256;
  memcpy(memory - sizeof block, &block, sizeof block); /* for release */
  ++c->blocks, ++c->calls, c->bytes += bytes;
  memset(memory, 0x7e, (size_t)bytes + c->offset); /* garbage, which nothing may read */
  return memory + c->offset;
}

static void count_release(void* context, void* memory, int64_t bytes, int32_t device, void* stream) {
  counter* c = context;
  CHECK(memory != NULL && device == -1 && stream == NULL);
  --c->blocks, c->bytes -= bytes;
  void* block;
  memcpy(&block, (char*)memory - c->offset - sizeof block, sizeof block);
  free(block);
}

static void check_groups(usp_engine* engine, usp_comm* comm) {
  usp_comm *ring = NULL, *ulysses = NULL;
  OK(usp_engine_ring_comm(engine, &ring));
  OK(usp_engine_ulysses_comm(engine, &ulysses));
  CHECK(usp_comm_size(ring) == 2 && usp_comm_rank(ring) == usp_comm_rank(comm) / 2);
  CHECK(usp_comm_size(ulysses) == 2 && usp_comm_rank(ulysses) == usp_comm_rank(comm) % 2);
  double sum = usp_comm_rank(comm);
  OK(usp_comm_all_reduce_f64(ring, &sum, 1));
  CHECK(sum == 2 * (usp_comm_rank(comm) % 2) + 2);
  usp_comm_destroy(ring); /* lent: nothing happens */
  CHECK(usp_comm_size(ring) == 2);
}

/* Rows without a batch are those of the batch. */
static void check_layout(const usp_plan* plan, const usp_batch* batch, const int64_t cu[3], int rank) {
  usp_attention_desc desc;
  usp_layout_desc layout;
  desc.size = sizeof desc;
  OK(usp_plan_get_desc(plan, &desc));
  OK(usp_layout_desc_init(&layout, sizeof layout));
  layout.kind = desc.layout, layout.ring = layout.ulysses = 2;
  layout.tokens = T, layout.cu_seqlens = cu, layout.documents = 2;
  const int64_t* tokens = NULL;
  int64_t count = 0, own = -1, list[T], few[1] = {-1};
  OK(usp_batch_q_tokens(batch, plan, &tokens, &count));
  OK(usp_layout_tokens(&layout, rank, NULL, 0, &own));
  CHECK(own == count && count > 1);
  OK(usp_layout_tokens(&layout, rank, list, T, &own));
  CHECK(memcmp(list, tokens, (size_t)count * sizeof *list) == 0);
  OK(usp_layout_tokens(&layout, rank, few, 1, &own));
  CHECK(few[0] == tokens[0] && own == count);
  REFUSED(usp_layout_tokens(&layout, 4, NULL, 0, &own), USP_USAGE, "outside the mesh");
  REFUSED(usp_layout_tokens(&layout, rank, NULL, 1, &own), USP_USAGE, "list is null");
  layout.tokens = T + 1;
  REFUSED(usp_layout_tokens(&layout, rank, NULL, 0, &own), USP_INVALID_INPUT, "the step has");
  layout.cu_seqlens = NULL, layout.documents = 0, layout.tokens = -5;
  REFUSED(usp_layout_tokens(&layout, rank, NULL, 0, &own), USP_INVALID_INPUT, "the step has -5 tokens");
  layout.tokens = USP_UNBOUNDED; /* counts alone */
  OK(usp_layout_tokens(&layout, rank, NULL, 0, &own));
  CHECK(own == USP_UNBOUNDED / 4);
  layout.kind = 9;
  REFUSED(usp_layout_tokens(&layout, rank, NULL, 0, &own), USP_USAGE, "layout.kind is 9");
  REFUSED(usp_layout_tokens(NULL, rank, NULL, 0, &own), USP_USAGE, "layout is null");
}

/* A forward whose state is the caller's alone: backward passes follow as often as one likes. */
static void check_untracked(usp_engine* engine, const usp_plan* plan, const usp_batch* batch,
                            const int64_t* cu, usp_comm* comm, layer* l) {
  const usp_attention_inputs in = inputs_of(l);
  l->call.forward_id = 0, l->call.untracked = 1;
  l->call.saved = (char*)l->saved_block + (64 - (uintptr_t)l->saved_block % 64) % 64;
  OK(usp_attend(engine, plan, batch, &in, &l->out, NULL, &l->call));
  CHECK(l->call.forward_id == 0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    memset(l->dq.data, 0x7e, l->dq_bytes);
    OK(backward(engine, plan, batch, l));
    expect_alone(plan, comm, cu, 2, l);
  }
  l->call.retain = 1;
  REFUSED(backward(engine, plan, batch, l), USP_USAGE, "call.untracked");
  l->call.retain = 0, l->call.untracked = 0;
  REFUSED(backward(engine, plan, batch, l), USP_USAGE, "is no forward in flight");
}

/* Parts of a batch's documents, as chunked layers attend: those of a batch with these documents. */
static void check_derived(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, const int64_t* cu,
                          usp_comm* comm, layer* l) {
  const int64_t parts[4] = {0, 4, cu[1], T}, across[3] = {0, cu[1] + 1, T}, fewer[3] = {0, cu[1], T - 1};
  usp_batch* derived = NULL;
  OK(usp_batch_derive(batch, parts, 3, &derived));
  forward(engine, plan, derived, l);
  OK(backward(engine, plan, derived, l));
  expect_alone(plan, comm, parts, 3, l);
  usp_batch_destroy(derived);
  REFUSED(usp_batch_derive(batch, across, 2, &derived), USP_INVALID_INPUT, "crosses the border");
  REFUSED(usp_batch_derive(batch, fewer, 2, &derived), USP_INVALID_INPUT, "parts hold");
  REFUSED(usp_batch_derive(NULL, parts, 3, &derived), USP_USAGE, "of is null");
}

static void check_agree(usp_engine* engine, int rank) {
  usp_fault fault;
  fault.size = sizeof fault;
  OK(usp_engine_agree(engine, "sample", 7));
  REFUSED(usp_engine_agree(engine, "sample", rank == 2 ? 8 : 7), USP_ENVIRONMENT, "sample");
  OK(usp_last_fault(&fault));
  CHECK(fault.kind == USP_FAULT_DISAGREEMENT && strcmp(fault.field, "sample") == 0);
  CHECK(fault.rank_count == 1 && fault.ranks[0] == 2);
  OK(usp_engine_agree(engine, "sample", 7)); /* still usable */
}

/* An engine of forward alone holds less, attends alike, and refuses backward. */
static void check_forward_only(usp_engine_desc desc, usp_comm* comm, const usp_plan* plan, const int64_t* cu,
                               layer* l, int64_t training_bytes) {
  usp_engine* engine = NULL;
  usp_batch* batch = NULL;
  usp_batch_sizes sizes;
  sizes.size = sizeof sizes;
  desc.forward_only = 1;
  OK(usp_engine_create(&desc, comm, &engine));
  OK(usp_batch_create(engine, cu, 2, 0, &batch));
  OK(usp_batch_get_sizes(batch, plan, &sizes));
  CHECK(sizes.workspace_bytes < training_bytes);
  void* trained = malloc(l->out_bytes);
  memcpy(trained, l->out.data, l->out_bytes);
  memset(l->out.data, 0x7e, l->out_bytes);
  forward(engine, plan, batch, l);
  CHECK(memcmp(trained, l->out.data, l->out_bytes) == 0);
  free(trained);
  CHECK(usp_engine_workspace_bytes(engine) <= sizes.workspace_bytes + 256);
  REFUSED(backward(engine, plan, batch, l), USP_USAGE, "forward alone");
  usp_batch_destroy(batch);
  usp_engine_destroy(engine);
}

/* Scratch goes back to the allocator when a call ends, and the next call takes it again. */
static void check_release_scratch(usp_engine_desc desc, usp_comm* comm, const usp_plan* plan,
                                  const int64_t* cu, layer* l) {
  usp_engine* engine = NULL;
  usp_batch* batch = NULL;
  counter held = {0};
  desc.release_scratch = 1;
  desc.allocator = (usp_allocator){NULL, NULL, NULL, NULL};
  REFUSED(usp_engine_create(&desc, comm, &engine), USP_USAGE, "desc.release_scratch");
  desc.allocator = (usp_allocator){count_allocate, count_release, &held, NULL};
  OK(usp_engine_create(&desc, comm, &engine));
  OK(usp_batch_create(engine, cu, 2, 0, &batch));
  for (int step = 0; step < 2; ++step) {
    forward(engine, plan, batch, l);
    CHECK(held.bytes == 0);
    OK(backward(engine, plan, batch, l));
    CHECK(held.bytes == 0);
  }
  expect_alone(plan, comm, cu, 2, l);
  CHECK(usp_engine_workspace_bytes(engine) > 0);
  usp_batch_destroy(batch);
  usp_engine_destroy(engine);
  CHECK(held.blocks == 0);
}

static int rank_main(usp_comm* comm, void* user) {
  const usp_plan* plan = user;
  const int64_t cu[MICROBATCHES][3] = {{0, 7, T}, {0, 3, T}};
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  usp_batch* batches[MICROBATCHES] = {NULL, NULL};
  usp_batch_sizes sizes[MICROBATCHES];
  layer layers[MICROBATCHES][LAYERS];
  state = (uint32_t)usp_comm_rank(comm) + 1;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = 2, desc.ulysses = 2, desc.compare_inputs = 1;
  counter held = {0};
  desc.allocator = (usp_allocator){count_allocate, count_release, &held, NULL};
  OK(usp_engine_create(&desc, comm, &engine));
  check_groups(engine, comm);
  for (int m = 0; m < MICROBATCHES; ++m) {
    OK(usp_batch_create(engine, cu[m], 2, 0, &batches[m]));
    sizes[m].size = sizeof sizes[m];
    OK(usp_batch_get_sizes(batches[m], plan, &sizes[m]));
    CHECK(sizes[m].saved_bytes > 0 && sizes[m].q_rows > 0);
    check_layout(plan, batches[m], cu[m], usp_comm_rank(comm));
    for (int l = 0; l < LAYERS; ++l) make_layer(&layers[m][l], &sizes[m], l);
  }
  for (int l = 0; l < LAYERS; ++l) forward(engine, plan, batches[0], &layers[0][l]);
  for (int l = 0; l < LAYERS; ++l) forward(engine, plan, batches[1], &layers[1][l]);
  REFUSED(backward(engine, plan, batches[1], &layers[0][0]), USP_USAGE, "another batch");
  for (int l = LAYERS; l-- > 0;) OK(backward(engine, plan, batches[0], &layers[0][l]));
  forward(engine, plan, batches[1], &layers[1][0]); /* recomputed; the first one is dropped below */
  for (int l = LAYERS; l-- > 0;) OK(backward(engine, plan, batches[1], &layers[1][l]));
  REFUSED(backward(engine, plan, batches[1], &layers[1][0]), USP_USAGE, "is no forward in flight");
  const int64_t greatest = sizes[0].workspace_bytes > sizes[1].workspace_bytes ? sizes[0].workspace_bytes
                                                                               : sizes[1].workspace_bytes;
  CHECK(usp_engine_workspace_bytes(engine) <= greatest + 256);
  for (int m = 0; m < MICROBATCHES; ++m)
    for (int l = 0; l < LAYERS; ++l) expect_alone(plan, comm, cu[m], 2, &layers[m][l]);
  usp_pass_record record;
  record.size = sizeof record;
  OK(usp_batch_record(engine, plan, batches[0], USP_BACKWARD, &record));
  CHECK(record.equal == 1 && record.executed_sent > 0 && record.host_wait_s >= 0);

  /* Steps that repeat take no memory. */
  CHECK(held.bytes >= usp_engine_workspace_bytes(engine));
  const int64_t calls = held.calls;
  for (int step = 0; step < 3; ++step)
    for (int m = 0; m < MICROBATCHES; ++m) {
      for (int l = 0; l < LAYERS; ++l) forward(engine, plan, batches[m], &layers[m][l]);
      for (int l = LAYERS; l-- > 0;) OK(backward(engine, plan, batches[m], &layers[m][l]));
    }
  CHECK(held.calls == calls);
  OK(usp_engine_check(engine));
  REFUSED(usp_engine_check(NULL), USP_USAGE, "engine is null");

  /* A second backward where it was announced, saved content that moved, memory that is too small, no
   * backward. */
  layer* one = &layers[0][0];
  forward(engine, plan, batches[0], one);
  one->call.retain = 1;
  OK(backward(engine, plan, batches[0], one));
  one->call.retain = 0;
  void* moved_block;
  void* moved = aligned((size_t)one->call.saved_bytes, &moved_block);
  memcpy(moved, one->call.saved, (size_t)one->call.saved_bytes);
  memset(one->call.saved, 0x7e, (size_t)one->call.saved_bytes);
  one->call.saved = moved;
  OK(backward(engine, plan, batches[0], one));
  expect_alone(plan, comm, cu[0], 2, one);
  const usp_attention_inputs in = inputs_of(one);
  one->call.saved_bytes -= 1;
  REFUSED(usp_attend(engine, plan, batches[0], &in, &one->out, NULL, &one->call), USP_USAGE,
          "this forward saves");
  one->call.saved_bytes += 1;
  OK(usp_attend(engine, plan, batches[0], &in, &one->out, NULL, &one->call));
  one->call.saved = NULL;
  REFUSED(backward(engine, plan, batches[0], one), USP_USAGE, "have no memory");
  one->call.saved = moved;
  usp_tensor inside = one->out;
  inside.data = moved;
  REFUSED(usp_attend(engine, plan, batches[0], &in, &inside, NULL, &one->call), USP_USAGE, "the saved state");
  one->call.untracked = 1; /* beside the forward_id of the call before */
  REFUSED(usp_attend(engine, plan, batches[0], &in, &one->out, NULL, &one->call), USP_USAGE,
          "call.untracked");
  one->call.untracked = 0, one->call.layer = -1;
  REFUSED(usp_attend(engine, plan, batches[0], &in, &one->out, NULL, &one->call), USP_USAGE, "call.layer");
  one->call.layer = 0;
  one->call.saved = NULL;
  OK(usp_attend(engine, plan, batches[0], &in, &one->out, NULL, &one->call));
  CHECK(one->call.forward_id == 0);
  REFUSED(backward(engine, plan, batches[0], one), USP_USAGE, "is no forward in flight");
  one->call.saved = moved;
  usp_attention_inputs seeded = in;
  seeded.dropout_seed = 3;
  REFUSED(usp_attend(engine, plan, batches[0], &seeded, &one->out, NULL, &one->call), USP_USAGE,
          "usp_batch_create");
  usp_forward_drop(engine, 12345);
  free(moved_block);
  check_untracked(engine, plan, batches[0], cu[0], comm, &layers[0][1]);
  check_derived(engine, plan, batches[0], cu[0], comm, &layers[0][2]);
  check_agree(engine, usp_comm_rank(comm));
  check_forward_only(desc, comm, plan, cu[0], &layers[0][1], sizes[0].workspace_bytes);
  check_release_scratch(desc, comm, plan, cu[0], &layers[0][1]);
  for (int m = 0; m < MICROBATCHES; ++m) {
    for (int l = 0; l < LAYERS; ++l) free_layer(&layers[m][l]);
    usp_batch_destroy(batches[m]);
  }
  usp_engine_destroy(engine);
  CHECK(held.blocks == 0 && held.bytes == 0);
  return USP_OK;
}

/* What an allocator may do wrong, and an engine without one. */
static void check_allocators(usp_comm* comm) {
  counter c = {0};
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = desc.ulysses = 1;
  desc.allocator.allocate = count_allocate;
  REFUSED(usp_engine_create(&desc, comm, &engine), USP_USAGE, "one of allocate and release");
  desc.allocator = (usp_allocator){count_allocate, count_release, &c, NULL};
  usp_attention_desc call = describe(1, 1);
  usp_plan* plan = NULL;
  usp_batch* batch = NULL;
  usp_batch_sizes sizes;
  sizes.size = sizeof sizes;
  layer l;
  OK(usp_plan_create(&call, &plan));
  OK(usp_engine_create(&desc, comm, &engine));
  const int64_t cu[2] = {0, T};
  OK(usp_batch_create(engine, cu, 1, 0, &batch));
  OK(usp_batch_get_sizes(batch, plan, &sizes));
  make_layer(&l, &sizes, 0);
  const usp_attention_inputs in = inputs_of(&l);
  c.empty = 1;
  REFUSED(usp_attend(engine, plan, batch, &in, &l.out, NULL, &l.call), USP_ENVIRONMENT, "has no room for");
  c.empty = 0, c.offset = 64;
  REFUSED(usp_attend(engine, plan, batch, &in, &l.out, NULL, &l.call), USP_USAGE, "boundary of 256 bytes");
  c.offset = 0;
  OK(usp_attend(engine, plan, batch, &in, &l.out, NULL, &l.call)); /* the engine still works */
  free_layer(&l);
  usp_batch_destroy(batch);
  usp_engine_destroy(engine);
  usp_plan_destroy(plan);
  CHECK(c.blocks == 0);
  desc.size = offsetof(usp_engine_desc, allocator); /* a program of the version without allocators */
  OK(usp_engine_create(&desc, comm, &engine));
  usp_engine_destroy(engine);
}

int main(void) {
  usp_attention_desc desc = describe(2, 2);
  usp_plan* plan = NULL;
  for (int save = 0; save < 2; ++save) {
    desc.save_exchanged_qkv = save;
    OK(usp_plan_create(&desc, &plan));
    OK(usp_run_threads(4, rank_main, plan));
    usp_plan_destroy(plan);
  }
  usp_engine_desc wrong;
  usp_engine* engine = NULL;
  usp_comm* one = NULL;
  OK(usp_comm_create_serial(&one));
  OK(usp_engine_desc_init(&wrong, sizeof wrong));
  REFUSED(usp_engine_create(&wrong, one, &engine), USP_USAGE, "ring is 0");
  wrong.ring = wrong.ulysses = 2;
  REFUSED(usp_engine_create(&wrong, one, &engine), USP_USAGE, "the mesh has 4 ranks");
  wrong.ring = 641, wrong.ulysses = 6700417; /* their product is 1 in 32 bits */
  REFUSED(usp_engine_create(&wrong, one, &engine), USP_USAGE, "it must be 1 to 32767");
  wrong.ring = 65536, wrong.ulysses = 1;
  REFUSED(usp_engine_create(&wrong, one, &engine), USP_USAGE, "ring is 65536; it must be 1 to 32767");
  wrong.ring = 1, wrong.ulysses_transport = 7;
  REFUSED(usp_engine_create(&wrong, one, &engine), USP_USAGE, "ulysses_transport");
  check_allocators(one);
  usp_comm_destroy(one);
  return 0;
}
