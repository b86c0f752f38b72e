/* SPDX-License-Identifier: Apache-2.0 */
/* The C API from C: a 2 x 2 mesh on threads against a dense softmax in plain loops, and the ways it refuses.
 */
#include "usp/usp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stays on in release builds. */
#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              usp_last_error());                                                              \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define OK(call) CHECK((call) == USP_OK)
/* Fails with a status, and the text names what is wrong. */
#define REFUSED(call, status, word)                  \
  do {                                               \
    CHECK((call) == (status));                       \
    CHECK(strstr(usp_last_error(), (word)) != NULL); \
  } while (0)

enum { B = 2, T = 37, H = 4, HK = 2, D = 8, DV = 6, EDGE = 5, BLOCKS = (T + EDGE - 1) / EDGE };

/* One trial: [batch][token][head][width] of all tokens, shared by the ranks, which write disjoint rows. */
typedef struct trial {
  usp_attention_desc desc;
  const usp_plan* plan;
  const int64_t* cu_seqlens;
  int64_t documents;
  int sequence_first;
  float q[B * T * H * D], k[B * T * HK * D], v[B * T * HK * DV], d_out[B * T * H * DV];
  float out[B * T * H * DV], lse[B * T * H], dq[B * T * H * D], dk[B * T * HK * D], dv[B * T * HK * DV];
  double sink[H], slopes[H], d_sink[4][H];
  uint8_t blocks[H * BLOCKS * BLOCKS];
  int64_t sent[2], received[2];
  int rows;
} trial;

static uint32_t state = 12345;
static float noise(void) {
  state = state * 1664525u + 1013904223u;
  return (float)((double)(state >> 8) / 8388608.0 - 1.0);
}

static void fill(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = noise();
}

/* A rank's tensor in either order of batch and rows. */
typedef struct local {
  float* data;
  usp_tensor tensor;
} local;

static local make(const trial* t, int64_t rows, int64_t heads, int64_t width) {
  local x;
  x.data = calloc((size_t)(B * rows * heads * width) + 1, sizeof(float));
  CHECK(x.data != NULL);
  x.tensor = usp_tensor_contiguous(x.data, USP_FP32, rows, heads, width);
  if (t->sequence_first) {
    x.tensor.batch_stride = heads * width;
    x.tensor.row_stride = B * heads * width;
  }
  return x;
}

/* Copies between a rank's rows and the global tensor. */
static void move(local x, float* all, const int64_t* tokens, int64_t rows, int64_t run, int gather) {
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < rows; ++i) {
      float* mine = x.data + b * x.tensor.batch_stride + i * x.tensor.row_stride;
      float* whole = all + (b * T + tokens[i]) * run;
      memcpy(gather ? mine : whole, gather ? whole : mine, (size_t)run * sizeof(float));
    }
}

static void check_bytes(trial* t, usp_attention* attention, usp_comm* comm) {
  for (int pass = 0; pass < 2; ++pass) {
    usp_pass_record record;
    record.size = sizeof record;
    OK(usp_attention_record(attention, pass, &record));
    CHECK(record.equal == 1);
    CHECK(record.planned_sent == record.executed_sent && record.planned_received == record.executed_received);
    CHECK(record.workspace_bytes > 0 || usp_comm_size(comm) == 1);
    double total[2] = {(double)record.executed_sent, (double)record.executed_received};
    int64_t sent = 0, received = 0;
    for (int32_t tick = 0; tick < record.ticks; ++tick)
      for (int32_t peer = 0; peer < usp_comm_size(comm); ++peer) {
        int64_t planned[2], executed[2];
        OK(usp_attention_traffic(attention, pass, tick, peer, planned, executed));
        CHECK(planned[0] == executed[0] && planned[1] == executed[1]);
        sent += executed[0], received += executed[1];
      }
    CHECK(sent == record.executed_sent && received == record.executed_received);
    OK(usp_comm_all_reduce_f64(comm, total, 2));
    if (usp_comm_rank(comm) == 0) t->sent[pass] = (int64_t)total[0], t->received[pass] = (int64_t)total[1];
  }
}

static int rank_main(usp_comm* comm, void* user) {
  trial* t = user;
  usp_attention* attention = NULL;
  const int64_t *mine = NULL, *keys = NULL;
  int64_t rows = -1, kv_rows = -1;
  OK(usp_attention_create(t->plan, comm, &attention));
  OK(usp_attention_set_batch(attention, t->cu_seqlens, t->documents));
  OK(usp_attention_q_tokens(attention, &mine, &rows));
  OK(usp_attention_kv_tokens(attention, &keys, &kv_rows));

  local q = make(t, rows, H, D), k = make(t, kv_rows, HK, D), v = make(t, kv_rows, HK, DV);
  local out = make(t, rows, H, DV), lse = make(t, rows, H, 1), d_out = make(t, rows, H, DV);
  local dq = make(t, rows, H, D), dk = make(t, kv_rows, HK, D), dv = make(t, kv_rows, HK, DV);
  move(q, t->q, mine, rows, H * D, 1);
  move(k, t->k, keys, kv_rows, HK * D, 1);
  move(v, t->v, keys, kv_rows, HK * DV, 1);
  move(d_out, t->d_out, mine, rows, H * DV, 1);

  usp_attention_inputs in;
  OK(usp_attention_inputs_init(&in, sizeof in));
  in.q = q.tensor, in.k = k.tensor, in.v = v.tensor;
  if (t->desc.sink) in.sink = t->sink;
  if (t->desc.alibi) in.alibi_slopes = t->slopes;
  if (t->desc.block_tokens) in.blocks = t->blocks, in.block_rows = in.block_columns = BLOCKS;
  in.dropout_seed = 7;
  usp_attention_gradients gradients;
  OK(usp_attention_gradients_init(&gradients, sizeof gradients));
  gradients.dq = dq.tensor, gradients.dk = dk.tensor, gradients.dv = dv.tensor;
  if (t->desc.sink) gradients.d_sink = t->d_sink[usp_comm_rank(comm)];
  OK(usp_attention_forward(attention, &in, &out.tensor, t->desc.return_lse ? &lse.tensor : NULL));
  OK(usp_attention_backward(attention, &in, &d_out.tensor, &gradients));
  check_bytes(t, attention, comm);

  move(out, t->out, mine, rows, H * DV, 0);
  if (t->desc.return_lse) move(lse, t->lse, mine, rows, H, 0);
  move(dq, t->dq, mine, rows, H * D, 0);
  move(dk, t->dk, keys, kv_rows, HK * D, 0);
  move(dv, t->dv, keys, kv_rows, HK * DV, 0);
  float count = (float)rows;
  OK(usp_comm_all_reduce_f32(comm, &count, 1));
  if (usp_comm_rank(comm) == 0) t->rows = (int)count;
  float* all[] = {q.data, k.data, v.data, out.data, lse.data, d_out.data, dq.data, dk.data, dv.data};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  usp_attention_destroy(attention);
  return USP_OK;
}

/* Whether query x sees key y, and the bias of its logit. */
static int sees(const trial* t, int h, int x, int y) {
  for (int64_t i = 0; i < t->documents; ++i)
    if ((x < t->cu_seqlens[i + 1]) != (y < t->cu_seqlens[i + 1])) return 0;
  if (x - y < t->desc.diff_min || x - y > t->desc.diff_max) return 0;
  return !t->desc.block_tokens || t->blocks[(h * BLOCKS + x / EDGE) * BLOCKS + y / EDGE];
}

static double errors[6]; /* out, lse, dq, dk, dv, d_sink: worst absolute difference of the last compare() */
static void worse(int which, double a, double b) {
  const double e = fabs(a - b);
  if (!(e <= errors[which])) errors[which] = e;
}

/* One query row against everything, in fp64: adds its share of dk, dv and d_sink. */
static void dense_row(const trial* t, int b, int x, int h, double* dk, double* dv, double* d_sink) {
  const int row = (b * T + x) * H + h, hk = h / (H / HK);
  double p[T], top = t->desc.sink ? t->sink[h] : -INFINITY, sum = 0, delta = 0, o[DV] = {0}, dq[D] = {0};
  for (int y = 0; y < T; ++y) {
    const float* key = t->k + ((b * T + y) * HK + hk) * D;
    p[y] = -INFINITY;
    if (!sees(t, h, x, y)) continue;
    double dot = 0;
    for (int i = 0; i < D; ++i) dot += (double)t->q[row * D + i] * (double)key[i];
    p[y] = dot / sqrt(D) - (t->desc.alibi ? t->slopes[h] * abs(x - y) : 0);
    if (p[y] > top) top = p[y];
  }
  for (int y = 0; y < T; ++y) sum += exp(p[y] - top);
  if (t->desc.sink) sum += exp(t->sink[h] - top);
  const float* d_o = t->d_out + row * DV;
  for (int y = 0; y < T; ++y) {
    p[y] = exp(p[y] - top) / sum;
    for (int i = 0; i < DV; ++i) o[i] += p[y] * (double)t->v[((b * T + y) * HK + hk) * DV + i];
  }
  for (int i = 0; i < DV; ++i) delta += o[i] * (double)d_o[i], worse(0, (double)t->out[row * DV + i], o[i]);
  if (t->desc.return_lse) worse(1, (double)t->lse[row], top + log(sum));
  if (t->desc.sink) d_sink[h] -= exp(t->sink[h] - top) / sum * delta;
  for (int y = 0; y < T; ++y) {
    const int at = (b * T + y) * HK + hk;
    double dp = 0;
    for (int i = 0; i < DV; ++i) {
      dp += (double)d_o[i] * (double)t->v[at * DV + i];
      dv[at * DV + i] += p[y] * (double)d_o[i];
    }
    for (int i = 0; i < D; ++i) {
      dq[i] += p[y] * (dp - delta) / sqrt(D) * (double)t->k[at * D + i];
      dk[at * D + i] += p[y] * (dp - delta) / sqrt(D) * (double)t->q[row * D + i];
    }
  }
  for (int i = 0; i < D; ++i) worse(2, (double)t->dq[row * D + i], dq[i]);
}

static void compare(const trial* t) {
  static double dk[B * T * HK * D], dv[B * T * HK * DV];
  double d_sink[H] = {0};
  memset(dk, 0, sizeof dk);
  memset(dv, 0, sizeof dv);
  memset(errors, 0, sizeof errors);
  for (int b = 0; b < B; ++b)
    for (int x = 0; x < T; ++x)
      for (int h = 0; h < H; ++h) dense_row(t, b, x, h, dk, dv, d_sink);
  for (int i = 0; i < B * T * HK * D; ++i) worse(3, (double)t->dk[i], dk[i]);
  for (int i = 0; i < B * T * HK * DV; ++i) worse(4, (double)t->dv[i], dv[i]);
  for (int h = 0; h < H && t->desc.sink; ++h) {
    double sum = 0;
    for (int rank = 0; rank < 4; ++rank) sum += t->d_sink[rank][h];
    worse(5, sum, d_sink[h]);
  }
  printf("out %.1e lse %.1e dq %.1e dk %.1e dv %.1e d_sink %.1e\n", errors[0], errors[1], errors[2],
         errors[3], errors[4], errors[5]);
  for (int i = 0; i < 6; ++i) CHECK(errors[i] < 1e-5);
}

static usp_attention_desc describe(int32_t ring, int32_t ulysses) {
  usp_attention_desc d;
  OK(usp_attention_desc_init(&d, sizeof d));
  d.batch = B, d.q_tokens = T, d.dtype = USP_FP32;
  d.query_heads = H, d.kv_heads = HK, d.head_dim_qk = D, d.head_dim_v = DV;
  d.ring = ring, d.ulysses = ulysses;
  d.diff_min = 0;
  return d;
}

static trial* new_trial(usp_attention_desc desc, const int64_t* cu_seqlens, int64_t documents) {
  trial* t = calloc(1, sizeof *t);
  CHECK(t != NULL);
  t->desc = desc, t->cu_seqlens = cu_seqlens, t->documents = documents;
  fill(t->q, B * T * H * D), fill(t->k, B * T * HK * D);
  fill(t->v, B * T * HK * DV), fill(t->d_out, B * T * H * DV);
  for (int h = 0; h < H; ++h) t->sink[h] = 0.4 * h - 0.5, t->slopes[h] = 0.1 / (h + 1);
  for (int i = 0; i < H * BLOCKS * BLOCKS; ++i) t->blocks[i] = noise() > -0.4f;
  return t;
}

static void run(trial* t) {
  usp_plan* plan = NULL;
  OK(usp_plan_create(&t->desc, &plan));
  CHECK(usp_plan_ranks(plan) == t->desc.ring * t->desc.ulysses);
  t->plan = plan;
  if (usp_plan_ranks(plan) > 1) {
    OK(usp_run_threads(usp_plan_ranks(plan), rank_main, t));
    CHECK(t->sent[0] > 0 && t->sent[1] > t->sent[0]);
  } else {
    usp_comm* comm = NULL;
    OK(usp_comm_create_serial(&comm));
    CHECK(usp_comm_rank(comm) == 0 && usp_comm_size(comm) == 1);
    CHECK(rank_main(comm, t) == USP_OK);
    CHECK(t->sent[0] == 0 && t->sent[1] == 0);
    usp_comm_destroy(comm);
  }
  CHECK(t->sent[0] == t->received[0] && t->sent[1] == t->received[1]);
  CHECK(t->rows == T);
  compare(t);
  usp_plan_destroy(plan);
  free(t);
}

static void test_numbers(void) {
  static const int64_t two[] = {0, 14, T};
  run(new_trial(describe(2, 2), two, 2));

  usp_attention_desc rich = describe(2, 2);
  rich.sink = rich.alibi = rich.return_lse = 1;
  rich.block_tokens = EDGE;
  rich.method = USP_RING_DIRECT, rich.layout = USP_STRIPED;
  trial* t = new_trial(rich, NULL, 0);
  t->sequence_first = 1;
  run(t);

  run(new_trial(describe(1, 1), two, 2));
}

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
  FIELD(ring_outer = 2, "USP_DOUBLE_RING");
  FIELD(method = 9, "method is 9");
  FIELD(diff_min = 1 + (d.diff_max = 0), "diff_min exceeds");
  FIELD(dropout = 1.0, "dropout");
  FIELD(replicated_q_count = 1, "replicated_q is null");
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
  static const int64_t falling[] = {0, 9, 5};
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

int main(void) {
  CHECK(strcmp(usp_version(), USP_VERSION) == 0);
  CHECK(strcmp(usp_last_error(), "") == 0);
  CHECK(strcmp(usp_status_name(USP_VERIFICATION), "verification") == 0);
  CHECK(strcmp(usp_status_name(7), "unknown") == 0);
  test_numbers();
  test_desc();
  test_plan_file();
  test_ranks();
  test_attention_errors();
  return 0;
}
