/* SPDX-License-Identifier: Apache-2.0 */
/* The C API from C: plans by field and by file, and everything that it refuses, with status and text. */
#include "c_api_checks.h"

static void test_desc(void) {
  usp_attention_desc d = describe(2, 2), back;
  usp_plan* plan = NULL;
  const int64_t prefix[] = {0, 3};
  d.replicated_q = d.replicated_k = prefix;
  d.replicated_q_count = d.replicated_k_count = 1;
  OK(usp_plan_create(&d, &plan));
  back.size = sizeof back;
  OK(usp_plan_get_desc(plan, &back));
  CHECK(back.q_tokens == T && back.kv_tokens == T && back.ring == 2 && back.ulysses == 2);
  CHECK(back.diff_min == 0 && back.diff_max == USP_UNBOUNDED && back.dtype == USP_FP32);
  CHECK(back.replicated_q_count == 1 && back.replicated_q[1] == 3);
  usp_plan_destroy(plan);
  for (int32_t phases = 0; phases <= 4; phases += 2) {
    d = describe(4, 1);
    CHECK(d.gate_phases == 1);
    d.method = USP_ALL_GATHER_KV;
    d.gated = 1;
    d.gate_phases = phases; /* 0 is what a caller of an earlier version leaves there */
    OK(usp_plan_create(&d, &plan));
    OK(usp_plan_get_desc(plan, &back));
    CHECK(back.gated == 1 && back.gate_phases == (phases == 0 ? 1 : phases));
    usp_plan_destroy(plan);
  }

  plan = NULL;
  REFUSED(usp_plan_create(NULL, &plan), USP_USAGE, "desc is null");
  REFUSED(usp_plan_create(&d, NULL), USP_USAGE, "plan is null");
  REFUSED(usp_attention_desc_init(NULL, sizeof d), USP_USAGE, "desc is null");
  REFUSED(usp_attention_desc_init(&d, 8), USP_USAGE, "desc.size");
  REFUSED(usp_attention_desc_init(&d, sizeof d + 8), USP_USAGE, "load the library");
#define FIELD(assignment, word)                           \
  do {                                                    \
    d = describe(2, 2);                                   \
    d.assignment;                                         \
    REFUSED(usp_plan_create(&d, &plan), USP_USAGE, word); \
    CHECK(plan == NULL);                                  \
  } while (0)
  FIELD(size = 0, "desc.size");
  FIELD(dtype = -1, "dtype");
  FIELD(q_tokens = 0, "q_tokens");
  FIELD(kv_heads = 3, "kv_heads 3 does not divide");
  FIELD(ulysses = 5, "ulysses 5 exceeds");
  FIELD(ring_outer = 2, "ring_outer 2 needs method double_ring");
  FIELD(method = (d.ring_outer = 2, USP_DOUBLE_RING), "ring_inner is 1");
  FIELD(ring_outer = 0, "ring_outer 0 does not divide");
  FIELD(block_tokens = -1, "block_tokens is -1");
  FIELD(method = 9, "method is 9");
  FIELD(diff_min = 1 + (d.diff_max = 0), "diff_min exceeds");
  FIELD(dropout = 1.0, "dropout");
  FIELD(head_chunks = 40000, "head_chunks is 40000; it must be 1 to 1024");
  FIELD(head_chunks = 1024, "1024 head chunks for");
  FIELD(ring = 40000, "ring_inner is 40000; it must be 1 to 32767");
  FIELD(q_tokens = USP_UNBOUNDED + 1, "q_tokens is 1099511627777; it must be 1 to 1099511627776");
  FIELD(batch = (d.q_tokens = USP_UNBOUNDED, INT64_C(1) << 24), "64 bits count");
  FIELD(batch = INT64_MAX, "batch is 9223372036854775807");
  FIELD(replicated_q_count = 1, "replicated_q is null");
  FIELD(gate_phases = -1, "gate_phases is -1; it must be 1 to 4");
  FIELD(gate_phases = 2, "gate_phases is for gated plans");
#undef FIELD
}

static char* read_file(const char* name) {
  FILE* file = fopen(name, "rb");
  CHECK(file != NULL);
  CHECK(fseek(file, 0, SEEK_END) == 0);
  const long size = ftell(file);
  rewind(file);
  char* text = calloc((size_t)size + 1, 1);
  CHECK(text != NULL && fread(text, 1, (size_t)size, file) == (size_t)size);
  fclose(file);
  return text;
}

static void test_plan_file(void) {
  char* text = read_file(USP_TEST_DATA "/plans/attention_3x2.json");
  usp_plan* plan = NULL;
  usp_attention_desc desc;
  OK(usp_plan_parse(text, 0, &plan));
  desc.size = sizeof desc;
  OK(usp_plan_get_desc(plan, &desc));
  CHECK(usp_plan_ranks(plan) == 6 && desc.query_heads == 28 && desc.dtype == USP_BF16);
  usp_plan_destroy(plan);
  plan = NULL;
  REFUSED(usp_plan_parse(text, 1, &plan), USP_USAGE, "layer is 1");
  REFUSED(usp_plan_parse("{", 0, &plan), USP_INVALID_INPUT, "plan");
  REFUSED(usp_plan_parse(NULL, 0, &plan), USP_USAGE, "text is null");
  CHECK(plan == NULL);
  free(text);
}

static int too_many_tokens(usp_comm* comm, void* user) {
  usp_attention* attention = NULL;
  const int64_t cu_seqlens[] = {0, T + 1};
  OK(usp_attention_create(user, comm, &attention));
  const int status = usp_attention_set_batch(attention, cu_seqlens, 1);
  usp_attention_destroy(attention);
  return status;
}

static int one_fails(usp_comm* comm, void* user) {
  (void)user;
  if (usp_comm_rank(comm) == 1) return USP_VERIFICATION;
  return usp_comm_barrier(comm) == USP_ENVIRONMENT ? USP_OK : USP_INTERNAL;
}

static int no_status(usp_comm* comm, void* user) {
  (void)comm, (void)user;
  return 17;
}

static void test_backends(void) {
  CHECK(usp_backend_built(USP_BACKEND_CPU) == 1);
  CHECK(usp_backend_built(USP_BACKEND_MMA) >= usp_backend_built(USP_BACKEND_CUDNN));
  CHECK(usp_backend_built(USP_BACKEND_CUDNN) >= 0);
  CHECK(usp_backend_built(-1) == -1 && usp_backend_built(99) == -1);
}

static void test_ranks(void) {
  usp_attention_desc d = describe(2, 2);
  usp_plan* plan = NULL;
  OK(usp_plan_create(&d, &plan));
  REFUSED(usp_run_threads(4, too_many_tokens, plan), USP_INVALID_INPUT, "plan for more");
  REFUSED(usp_run_threads(2, one_fails, NULL), USP_VERIFICATION, "rank 1");
  REFUSED(usp_run_threads(2, no_status, NULL), USP_USAGE, "17");
  REFUSED(usp_run_threads(0, one_fails, NULL), USP_USAGE, "ranks is 0");
  REFUSED(usp_run_threads(2, NULL, NULL), USP_USAGE, "function is null");
  REFUSED(usp_comm_create_serial(NULL), USP_USAGE, "comm is null");
  REFUSED(usp_comm_barrier(NULL), USP_USAGE, "comm is null");
  CHECK(usp_comm_rank(NULL) == -1 && usp_comm_size(NULL) == -1 && usp_plan_ranks(NULL) == 0);

  usp_comm* comm = NULL;
  usp_attention* attention = NULL;
  OK(usp_comm_create_serial(&comm));
  REFUSED(usp_comm_all_reduce_f32(comm, NULL, 1), USP_USAGE, "data is null");
  REFUSED(usp_attention_create(plan, comm, &attention), USP_USAGE, "the plan is for 4 ranks");
  REFUSED(usp_attention_create(NULL, comm, &attention), USP_USAGE, "plan is null");
  REFUSED(usp_attention_create(plan, NULL, &attention), USP_USAGE, "comm is null");
  REFUSED(usp_attention_create(plan, comm, NULL), USP_USAGE, "attention is null");
  CHECK(attention == NULL);
  usp_comm_destroy(comm);
  usp_plan_destroy(plan);
}

static void test_attention_errors(void) {
  static const int64_t falling[] = {0, 9, 5}, five[] = {0, 5}, nine[] = {0, 9};
  usp_attention_desc d = describe(1, 1);
  usp_plan* plan = NULL;
  usp_comm* comm = NULL;
  usp_attention* a = NULL;
  usp_attention_inputs in;
  usp_attention_gradients g;
  usp_pass_record record;
  int64_t count = 0;
  OK(usp_plan_create(&d, &plan));
  OK(usp_comm_create_serial(&comm));
  OK(usp_attention_create(plan, comm, &a));
  OK(usp_attention_inputs_init(&in, sizeof in));
  OK(usp_attention_gradients_init(&g, sizeof g));
  record.size = sizeof record;
  static float data[B * T * H * D];
  const usp_tensor wide = usp_tensor_contiguous(data, USP_FP32, T, H, D);
  const usp_tensor out = usp_tensor_contiguous(data, USP_FP32, T, H, DV);
  in.q = in.k = in.v = wide;
  REFUSED(usp_attention_q_tokens(a, NULL, &count), USP_USAGE, "no batch");
  REFUSED(usp_attention_record(a, USP_FORWARD, &record), USP_USAGE, "no batch");
  REFUSED(usp_attention_forward(a, &in, &out, NULL), USP_USAGE, "set_batch");
  REFUSED(usp_attention_set_batch(a, NULL, 1), USP_USAGE, "cu_seqlens is null");
  REFUSED(usp_attention_set_batch(a, falling, 2), USP_INVALID_INPUT, "not decrease");
  REFUSED(usp_attention_set_batch(a, falling, 0), USP_USAGE, "documents is 0");
  REFUSED(usp_attention_set_cross_batch(a, five, NULL, NULL, 1), USP_USAGE, "cu_k is null");
  OK(usp_attention_set_cross_batch(a, five, nine, NULL, 1));
  OK(usp_attention_q_tokens(a, NULL, &count));
  CHECK(count == 5);
  OK(usp_attention_kv_tokens(a, NULL, &count));
  CHECK(count == 9);
  OK(usp_attention_set_batch(a, NULL, 0));
  OK(usp_attention_kv_tokens(a, NULL, &count));
  CHECK(count == T);
  REFUSED(usp_attention_backward(a, &in, &out, &g), USP_USAGE, "after forward");
  REFUSED(usp_attention_forward(a, &in, &out, &wide), USP_USAGE, "lse");
  REFUSED(usp_attention_forward(a, &in, NULL, NULL), USP_USAGE, "out is null");
  REFUSED(usp_attention_forward(a, NULL, &out, NULL), USP_USAGE, "inputs is null");
  REFUSED(usp_attention_forward(NULL, &in, &out, NULL), USP_USAGE, "attention is null");
  in.sink = (const double[]){0, 0, 0, 0};
  REFUSED(usp_attention_forward(a, &in, &out, NULL), USP_USAGE, "sink");
  in.sink = NULL;
  in.k.data = NULL;
  REFUSED(usp_attention_forward(a, &in, &out, NULL), USP_USAGE, "k has no memory");
  in.k = wide, in.v.dtype = USP_BF16;
  REFUSED(usp_attention_forward(a, &in, &out, NULL), USP_USAGE, "dtype");
  in.v.dtype = 12;
  REFUSED(usp_attention_forward(a, &in, &out, NULL), USP_USAGE, "v.dtype is 12");
  REFUSED(usp_attention_record(a, 2, &record), USP_USAGE, "pass is 2");
  REFUSED(usp_attention_traffic(a, USP_FORWARD, 999, 0, NULL, NULL), USP_USAGE, "tick");
  usp_attention_destroy(a);
  usp_comm_destroy(comm);
  usp_plan_destroy(plan);
  usp_attention_destroy(NULL);
  usp_comm_destroy(NULL);
  usp_plan_destroy(NULL);
}

/* One attention holds the state of one forward. */
static void test_order(void) {
  static float q[2][B * T * H * D], k[2][B * T * HK * D], v[2][B * T * HK * DV], out[2][B * T * H * DV];
  static float d_out[B * T * H * DV], dq[B * T * H * D], dk[B * T * HK * D], dv[B * T * HK * DV];
  usp_attention_desc d = describe(1, 1);
  usp_plan* plan = NULL;
  usp_comm* comm = NULL;
  usp_attention* a = NULL;
  usp_attention_inputs in[2];
  usp_attention_gradients g;
  usp_tensor to[2];
  OK(usp_plan_create(&d, &plan));
  OK(usp_comm_create_serial(&comm));
  OK(usp_attention_create(plan, comm, &a));
  OK(usp_attention_set_batch(a, NULL, 0));
  OK(usp_attention_gradients_init(&g, sizeof g));
  g.dq = usp_tensor_contiguous(dq, USP_FP32, T, H, D);
  g.dk = usp_tensor_contiguous(dk, USP_FP32, T, HK, D);
  g.dv = usp_tensor_contiguous(dv, USP_FP32, T, HK, DV);
  const usp_tensor from = usp_tensor_contiguous(d_out, USP_FP32, T, H, DV);
  for (int i = 0; i < 2; ++i) {
    OK(usp_attention_inputs_init(&in[i], sizeof in[i]));
    in[i].q = usp_tensor_contiguous(q[i], USP_FP32, T, H, D);
    in[i].k = usp_tensor_contiguous(k[i], USP_FP32, T, HK, D);
    in[i].v = usp_tensor_contiguous(v[i], USP_FP32, T, HK, DV);
    to[i] = usp_tensor_contiguous(out[i], USP_FP32, T, H, DV);
    OK(usp_attention_forward(a, &in[i], &to[i], NULL));
  }
  REFUSED(usp_attention_backward(a, &in[0], &from, &g), USP_USAGE, "another q than the last forward");
  OK(usp_attention_backward(a, &in[1], &from, &g));
  REFUSED(usp_attention_backward(a, &in[0], &from, &g), USP_USAGE, "another q than the last forward");
  OK(usp_attention_backward(a, &in[1], &from, &g));
  OK(usp_attention_set_batch(a, NULL, 0));
  REFUSED(usp_attention_backward(a, &in[1], &from, &g), USP_USAGE, "after forward of the same batch");
  usp_attention_destroy(a);
  usp_comm_destroy(comm);
  usp_plan_destroy(plan);
}

/* Results have memory of their own, within the address space and in the right type. */
static void test_memory(void) {
  static float q[B * T * H * D], k[B * T * HK * D], v[B * T * HK * DV], out[B * T * H * DV];
  static float d_out[B * T * H * DV], dq[B * T * H * D], dk[B * T * HK * D], dv[B * T * HK * DV];
  usp_attention_desc d = describe(1, 1);
  usp_plan* plan = NULL;
  usp_comm* comm = NULL;
  usp_attention* a = NULL;
  usp_attention_inputs in;
  usp_attention_gradients g;
  OK(usp_plan_create(&d, &plan));
  OK(usp_comm_create_serial(&comm));
  OK(usp_attention_create(plan, comm, &a));
  REFUSED(usp_attention_set_batch(a, (const int64_t[]){0, T}, INT64_MAX), USP_USAGE,
          "it must be 1 to 1048576");
  OK(usp_attention_set_batch(a, NULL, 0));
  OK(usp_attention_inputs_init(&in, sizeof in));
  OK(usp_attention_gradients_init(&g, sizeof g));
  in.q = usp_tensor_contiguous(q, USP_FP32, T, H, D);
  in.k = usp_tensor_contiguous(k, USP_FP32, T, HK, D);
  in.v = usp_tensor_contiguous(v, USP_FP32, T, HK, DV);
  g.dq = usp_tensor_contiguous(dq, USP_FP32, T, H, D);
  g.dk = usp_tensor_contiguous(dk, USP_FP32, T, HK, D);
  g.dv = usp_tensor_contiguous(dv, USP_FP32, T, HK, DV);
  const usp_tensor from = usp_tensor_contiguous(d_out, USP_FP32, T, H, DV);
  usp_tensor to = usp_tensor_contiguous(q, USP_FP32, T, H, DV);
  REFUSED(usp_attention_forward(a, &in, &to, NULL), USP_USAGE, "out overlaps q");
  to.data = out, to.row_stride = -to.row_stride;
  REFUSED(usp_attention_forward(a, &in, &to, NULL), USP_USAGE, "negative");
  to.row_stride = INT64_MAX / 8;
  REFUSED(usp_attention_forward(a, &in, &to, NULL), USP_USAGE, "beyond the address space");
  to.row_stride = DV;
  REFUSED(usp_attention_forward(a, &in, &to, NULL), USP_USAGE, "overwrite each other");
  to = usp_tensor_contiguous(out, USP_FP32, T, H, DV);
  REFUSED(usp_attention_forward(a, &in, &to, &to), USP_USAGE, "return_lse");
  OK(usp_attention_forward(a, &in, &to, NULL));
  g.dq.dtype = USP_BF16;
  REFUSED(usp_attention_backward(a, &in, &from, &g), USP_USAGE, "dq is bf16; a gradient has the plan's fp32");
  g.dq.dtype = USP_FP32, g.dv.data = dk;
  REFUSED(usp_attention_backward(a, &in, &from, &g), USP_USAGE, "dv overlaps dk");
  g.dv.data = dv;
  OK(usp_attention_backward(a, &in, &from, &g));
  usp_attention_destroy(a);
  usp_comm_destroy(comm);
  usp_plan_destroy(plan);
}

int main(void) {
  CHECK(strcmp(usp_version(), USP_VERSION) == 0);
  CHECK(strcmp(usp_last_error(), "") == 0);
  CHECK(strcmp(usp_status_name(USP_VERIFICATION), "verification") == 0);
  CHECK(strcmp(usp_status_name(7), "unknown") == 0);
  test_desc();
  test_plan_file();
  test_backends();
  test_ranks();
  test_attention_errors();
  test_order();
  test_memory();
  return 0;
}
