/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks on GPUs from C, with streams and memory of the caller's: the first step on one stream, the second
 * on another, give the same bits, take no memory anew, and agree with the CPU's fp32 results; a captured step
 * does, too. Exit code 77 where there is no GPU. */
#include "c_api_checks.h"

#include <cuda_runtime_api.h>
#include <math.h>

enum { SKIPPED = 77, RANKS = 2, TOKENS = 200, HEADS = 4, KV_HEADS = 2, WIDTH = 64 };
#define CUDA(call) CHECK((call) == cudaSuccess)

/* The caller's allocator. */
typedef struct pool {
  int64_t blocks, bytes, calls;
  int device;
} pool;

static void* pool_allocate(void* context, int64_t bytes, int32_t device, void* stream) {
  pool* p = context;
  void* block = NULL;
  CHECK(bytes > 0 && device == p->device && stream != NULL);
  if (cudaMalloc(&block, (size_t)bytes) != cudaSuccess) return NULL;
  ++p->blocks, ++p->calls, p->bytes += bytes;
  return block;
}
static void pool_release(void* context, void* memory, int64_t bytes, int32_t device, void* stream) {
  pool* p = context;
  CHECK(device == p->device && stream != NULL);
  CUDA(cudaFree(memory));
  --p->blocks, p->bytes -= bytes;
}

static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static float from_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
/* A value that bf16 holds, from the numbers of tensor, token and element. */
static float value_at(int tensor, int64_t token, int64_t element) {
  uint32_t h = (uint32_t)tensor * 2654435761u ^ (uint32_t)token * 40503u ^ (uint32_t)element * 2246822519u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  return from_bf16(to_bf16((float)((double)(h >> 8) / 8388608.0 - 1.0)));
}

/* Tensors of a rank: q, k, v, d_out filled, the others of the caller's results. */
enum { Q, K, V, D_OUT, OUT, DQ, DK, DV_, TENSORS };
static int64_t width_of(int tensor) {
  return tensor == K || tensor == V || tensor == DK || tensor == DV_ ? KV_HEADS * WIDTH : HEADS * WIDTH;
}

static void fill(float* host, int tensor, const int64_t* tokens, int64_t rows) {
  const int64_t width = width_of(tensor);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < width; ++x) host[r * width + x] = value_at(tensor, tokens[r], x);
}

static usp_attention_inputs inputs_of(const usp_tensor t[TENSORS]) {
  usp_attention_inputs in;
  OK(usp_attention_inputs_init(&in, sizeof in));
  in.q = t[Q], in.k = t[K], in.v = t[V];
  return in;
}

static usp_attention_gradients gradients_of(const usp_tensor t[TENSORS]) {
  usp_attention_gradients g;
  OK(usp_attention_gradients_init(&g, sizeof g));
  g.dq = t[DQ], g.dk = t[DK], g.dv = t[DV_];
  return g;
}

static usp_plan* make_plan(int32_t ring, int32_t ulysses, int32_t dtype, int32_t backend) {
  usp_attention_desc d = describe(ring, ulysses);
  usp_plan* plan = NULL;
  d.batch = 1, d.q_tokens = TOKENS, d.query_heads = HEADS, d.kv_heads = KV_HEADS, d.dtype = dtype;
  d.head_dim_qk = d.head_dim_v = WIDTH, d.backend = backend;
  OK(usp_plan_create(&d, &plan));
  return plan;
}

/* The problem on the CPU in fp32, on one rank: results by token. */
static void run_on_cpu(float* results[TENSORS]) {
  usp_comm* comm = NULL;
  usp_plan* plan = make_plan(1, 1, USP_FP32, USP_BACKEND_CPU);
  usp_attention* attention = NULL;
  const int64_t cu[] = {0, 70, TOKENS};
  float* data[TENSORS];
  usp_tensor t[TENSORS];
  OK(usp_comm_create_serial(&comm));
  OK(usp_attention_create(plan, comm, &attention));
  OK(usp_attention_set_batch(attention, cu, 2));
  int64_t tokens[TOKENS];
  for (int64_t i = 0; i < TOKENS; ++i) tokens[i] = i;
  for (int i = 0; i < TENSORS; ++i) {
    data[i] = calloc((size_t)(TOKENS * width_of(i)), sizeof(float));
    CHECK(data[i] != NULL);
    if (i < OUT) fill(data[i], i, tokens, TOKENS);
    t[i] = usp_tensor_contiguous(data[i], USP_FP32, TOKENS, width_of(i) / WIDTH, WIDTH);
    results[i] = data[i];
  }
  const usp_attention_inputs in = inputs_of(t);
  const usp_attention_gradients g = gradients_of(t);
  OK(usp_attention_forward(attention, &in, &t[OUT], NULL));
  OK(usp_attention_backward(attention, &in, &t[D_OUT], &g));
  usp_attention_destroy(attention);
  usp_plan_destroy(plan);
  usp_comm_destroy(comm);
}

/* One rank's tensors on its GPU. */
typedef struct rank_tensors {
  usp_tensor t[TENSORS];
  int64_t rows;
  uint16_t* host;
} rank_tensors;

static void make_tensors(rank_tensors* r, const int64_t* tokens, int64_t rows) {
  r->rows = rows;
  r->host = malloc((size_t)(rows * HEADS * WIDTH) * sizeof(uint16_t));
  float* wide = malloc((size_t)(rows * HEADS * WIDTH) * sizeof(float));
  CHECK(r->host != NULL && wide != NULL);
  for (int i = 0; i < TENSORS; ++i) {
    const size_t count = (size_t)(rows * width_of(i));
    void* data = NULL;
    CUDA(cudaMalloc(&data, count * sizeof(uint16_t)));
    CUDA(cudaMemset(data, 0, count * sizeof(uint16_t)));
    if (i < OUT) {
      fill(wide, i, tokens, rows);
      for (size_t x = 0; x < count; ++x) r->host[x] = to_bf16(wide[x]);
      CUDA(cudaMemcpy(data, r->host, count * sizeof(uint16_t), cudaMemcpyHostToDevice));
    }
    r->t[i] = usp_tensor_contiguous(data, USP_BF16, rows, width_of(i) / WIDTH, WIDTH);
  }
  free(wide);
}

static void free_tensors(rank_tensors* r) {
  for (int i = 0; i < TENSORS; ++i) CUDA(cudaFree(r->t[i].data));
  free(r->host);
}

/* Relative to the greatest value of the tensor. */
static void expect_close(rank_tensors* r, int tensor, const float* expected, const int64_t* tokens) {
  const int64_t width = width_of(tensor);
  double worst = 0, greatest = 0;
  CUDA(cudaMemcpy(r->host, r->t[tensor].data, (size_t)(r->rows * width) * sizeof(uint16_t),
                  cudaMemcpyDeviceToHost));
  for (int64_t row = 0; row < r->rows; ++row)
    for (int64_t x = 0; x < width; ++x) {
      const double want = (double)expected[tokens[row] * width + x];
      worst = fmax(worst, fabs((double)from_bf16(r->host[row * width + x]) - want));
      greatest = fmax(greatest, fabs(want));
    }
  if (!(worst <= 0.02 * greatest))
    fprintf(stderr, "tensor %d differs by %g, its greatest value is %g\n", tensor, worst, greatest);
  CHECK(worst <= 0.02 * greatest);
}

typedef struct step {
  usp_engine* engine;
  const usp_plan* plan;
  const usp_batch* batch;
  rank_tensors* tensors;
  void* saved;
  int64_t saved_bytes;
} step;

static void enqueue_step(const step* s, cudaStream_t forward_on, cudaStream_t backward_on) {
  usp_tensor* t = s->tensors->t;
  usp_call call;
  OK(usp_call_init(&call, sizeof call));
  call.saved = s->saved, call.saved_bytes = s->saved_bytes, call.stream = forward_on;
  const usp_attention_inputs in = inputs_of(t);
  const usp_attention_gradients g = gradients_of(t);
  OK(usp_attend(s->engine, s->plan, s->batch, &in, &t[OUT], NULL, &call));
  call.stream = backward_on;
  OK(usp_attend_grad(s->engine, s->plan, s->batch, &in, &t[OUT], &t[D_OUT], &g, &call));
}

static void run_step(const step* s, cudaStream_t forward_on, cudaStream_t backward_on) {
  enqueue_step(s, forward_on, backward_on);
  if (backward_on != NULL) CUDA(cudaStreamSynchronize(backward_on));
}

static void keep(const rank_tensors* r, int tensor, uint16_t* to) {
  CUDA(cudaMemcpy(to, r->t[tensor].data, (size_t)(r->rows * width_of(tensor)) * sizeof(uint16_t),
                  cudaMemcpyDeviceToHost));
}

static void clear(const rank_tensors* r, int tensor) {
  CUDA(cudaMemset(r->t[tensor].data, 0, (size_t)(r->rows * width_of(tensor)) * sizeof(uint16_t)));
}

static float* expected[TENSORS];

/* A step captured on a stream of the caller's, launched twice. */
static void run_graph(const step* s, const int64_t* tokens) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t launch;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue_step(s, stream, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&launch, graph, 0));
  for (int i = OUT; i < TENSORS; ++i) clear(s->tensors, i);
  CUDA(cudaDeviceSynchronize());
  for (int replay = 0; replay < 2; ++replay) CUDA(cudaGraphLaunch(launch, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = OUT; i < TENSORS; ++i) expect_close(s->tensors, i, expected[i], tokens);
  CUDA(cudaGraphExecDestroy(launch));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
}

typedef struct mesh {
  int32_t ring, ulysses, own_allocator;
} mesh;

static int on_rank(usp_comm* comm, void* user) {
  const mesh* m = user;
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  const int device = usp_comm_rank(comm) % devices;
  CUDA(cudaSetDevice(device));
  pool memory = {0, 0, 0, device};
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = m->ring, desc.ulysses = m->ulysses, desc.device = device, desc.backend = USP_BACKEND_MMA;
  if (m->own_allocator) {
    desc.allocator.allocate = pool_allocate, desc.allocator.release = pool_release;
    desc.allocator.context = &memory;
  }
  OK(usp_engine_create(&desc, comm, &engine));
  const char* notes = NULL;
  OK(usp_engine_notes(engine, &notes));
  usp_plan* plan = make_plan(m->ring, m->ulysses, USP_BF16, USP_BACKEND_MMA);
  const int64_t cu[] = {0, 70, TOKENS};
  usp_batch* batch = NULL;
  usp_batch_sizes sizes;
  const int64_t* tokens = NULL;
  sizes.size = sizeof sizes;
  OK(usp_batch_create(engine, cu, 2, 0, &batch));
  OK(usp_batch_get_sizes(batch, plan, &sizes));
  OK(usp_batch_q_tokens(batch, plan, &tokens, &sizes.q_rows));
  rank_tensors tensors;
  make_tensors(&tensors, tokens, sizes.q_rows);
  step s = {engine, plan, batch, &tensors, NULL, sizes.saved_bytes};
  CUDA(cudaMalloc(&s.saved, (size_t)sizes.saved_bytes + 256));
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i) CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));

  run_step(&s, streams[0], streams[0]);
  for (int i = OUT; i < TENSORS; ++i) expect_close(&tensors, i, expected[i], tokens);
  const pool after_first = memory;
  CHECK(m->own_allocator == 0 || after_first.blocks > 0);
  /* The second step crosses streams: backward waits for its forward. */
  uint16_t* first[TENSORS];
  uint16_t* second = malloc((size_t)(tensors.rows * HEADS * WIDTH) * sizeof(uint16_t));
  CHECK(second != NULL);
  for (int i = OUT; i < TENSORS; ++i) {
    first[i] = malloc((size_t)(tensors.rows * width_of(i)) * sizeof(uint16_t));
    CHECK(first[i] != NULL);
    keep(&tensors, i, first[i]);
    clear(&tensors, i);
  }
  CUDA(cudaDeviceSynchronize());
  run_step(&s, streams[1], streams[0]);
  CHECK(memory.calls == after_first.calls && memory.bytes == after_first.bytes);
  for (int i = OUT; i < TENSORS; ++i) {
    keep(&tensors, i, second);
    /* Without `deterministic`, gradients of keys are summed in any order. */
    if (i == OUT)
      CHECK(memcmp(first[i], second, (size_t)(tensors.rows * width_of(i)) * sizeof(uint16_t)) == 0);
    expect_close(&tensors, i, expected[i], tokens);
    free(first[i]);
  }
  /* Streams may go between calls; the engine has its own. */
  for (int i = 0; i < 2; ++i) CUDA(cudaStreamDestroy(streams[i]));
  run_step(&s, NULL, NULL);
  CUDA(cudaDeviceSynchronize());
  expect_close(&tensors, OUT, expected[OUT], tokens);
  /* CUDA's default stream has a name of its own, since NULL is the engine's. */
  clear(&tensors, OUT);
  CUDA(cudaDeviceSynchronize());
  run_step(&s, cudaStreamLegacy, cudaStreamPerThread);
  expect_close(&tensors, OUT, expected[OUT], tokens);
  if (devices >= RANKS) run_graph(&s, tokens);
  CUDA(cudaFree(s.saved));
  free(second);
  free_tensors(&tensors);
  usp_batch_destroy(batch);
  usp_plan_destroy(plan);
  usp_engine_destroy(engine);
  CHECK(memory.blocks == 0 && memory.bytes == 0);
  return USP_OK;
}

/* Engines that cannot be. */
static int refusals(usp_comm* comm, void* user) {
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  (void)user;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = 1, desc.ulysses = 1, desc.device = 0;
  REFUSED(usp_engine_create(&desc, comm, &engine), USP_USAGE, "backend cpu");
  desc.backend = USP_BACKEND_MMA, desc.device = 1000;
  REFUSED(usp_engine_create(&desc, comm, &engine), USP_ENVIRONMENT, "1000");
  desc.device = 0, desc.ring_transport = 7;
  REFUSED(usp_engine_create(&desc, comm, &engine), USP_USAGE, "ring_transport");
  return USP_OK;
}

int main(void) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    puts("no GPU here");
    return SKIPPED;
  }
  run_on_cpu(expected);
  const mesh meshes[] = {{2, 1, 1}, {1, 2, 1}, {2, 1, 0}, {1, 2, 0}};
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; ++i) {
    mesh m = meshes[i];
    OK(usp_run_threads(RANKS, on_rank, &m));
  }
  OK(usp_run_threads(1, refusals, NULL));
  for (int i = 0; i < TENSORS; ++i) free(expected[i]);
  printf("%d ranks on %d GPUs\n", RANKS, devices);
  return 0;
}
