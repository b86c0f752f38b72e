/* SPDX-License-Identifier: Apache-2.0 */
/* The C API from C: a 2 x 2 mesh on threads against a dense softmax in plain loops. */
#include "c_api_checks.h"

#include <math.h>

enum { EDGE = 5, BLOCKS = (T + EDGE - 1) / EDGE };

/* One trial: [batch][token][head][width] of all tokens, shared by the ranks, which write disjoint rows. */
typedef struct trial {
  usp_attention_desc desc;
  const usp_plan* plan;
  const int64_t* cu_seqlens;
  int64_t documents;
  int sequence_first, cross;
  uint64_t seed;
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

/* An attention of forward alone holds less, attends alike, and refuses backward. */
static void check_forward_only(const trial* t, usp_comm* comm, const usp_attention_inputs* in, const local* out,
                               const local* lse, const usp_tensor* d_out,
                               const usp_attention_gradients* gradients) {
  usp_attention* attention = NULL;
  usp_attention_options options;
  OK(usp_attention_options_init(&options, sizeof options));
  options.reserved = 1;
  REFUSED(usp_attention_create_with(t->plan, comm, &options, &attention), USP_USAGE, "options.reserved");
  options.reserved = 0, options.forward_only = 1;
  OK(usp_attention_create_with(t->plan, comm, &options, &attention));
  OK(usp_attention_set_batch(attention, t->cu_seqlens, t->documents));
  int64_t rows = 0;
  OK(usp_attention_q_tokens(attention, NULL, &rows));
  local again = make(t, rows, H, DV);
  OK(usp_attention_forward(attention, in, &again.tensor, t->desc.return_lse ? &lse->tensor : NULL));
  CHECK(memcmp(again.data, out->data, (size_t)(B * rows * H * DV) * sizeof(float)) == 0);
  REFUSED(usp_attention_backward(attention, in, d_out, gradients), USP_USAGE, "forward alone");
  free(again.data);
  usp_attention_destroy(attention);
}

static int rank_main(usp_comm* comm, void* user) {
  trial* t = user;
  usp_attention* attention = NULL;
  const int64_t *mine = NULL, *keys = NULL;
  int64_t rows = -1, kv_rows = -1;
  OK(usp_attention_create(t->plan, comm, &attention));
  if (t->cross)
    OK(usp_attention_set_cross_batch(attention, t->cu_seqlens, t->cu_seqlens, NULL, t->documents));
  else
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
  in.dropout_seed = t->seed;
  usp_attention_gradients gradients;
  OK(usp_attention_gradients_init(&gradients, sizeof gradients));
  gradients.dq = dq.tensor, gradients.dk = dk.tensor, gradients.dv = dv.tensor;
  if (t->desc.sink) gradients.d_sink = t->d_sink[usp_comm_rank(comm)];
  OK(usp_attention_forward(attention, &in, &out.tensor, t->desc.return_lse ? &lse.tensor : NULL));
  OK(usp_attention_backward(attention, &in, &d_out.tensor, &gradients));
  check_bytes(t, attention, comm);
  if (!t->cross) check_forward_only(t, comm, &in, &out, &lse, &d_out.tensor, &gradients);

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
  usp_plan_destroy(plan);
}

static void run_and_compare(trial* t) {
  run(t);
  compare(t);
  free(t);
}

static void test_numbers(void) {
  static const int64_t two[] = {0, 14, T};
  run_and_compare(new_trial(describe(2, 2), two, 2));

  usp_attention_desc rich = describe(2, 2);
  rich.sink = rich.alibi = rich.return_lse = 1;
  rich.block_tokens = EDGE;
  rich.method = USP_RING_DIRECT, rich.layout = USP_STRIPED;
  trial* t = new_trial(rich, NULL, 0);
  t->sequence_first = 1;
  run_and_compare(t);

  t = new_trial(describe(1, 1), two, 2);
  t->cross = 1;
  run_and_compare(t);
}

/* The seed reaches the kernel, and the mesh does not change what it drops. */
static void test_dropout(void) {
  const struct {
    int32_t degree;
    uint64_t seed;
  } cases[] = {{1, 7}, {2, 7}, {2, 8}};
  trial* t[3];
  for (int i = 0; i < 3; ++i) {
    usp_attention_desc d = describe(cases[i].degree, cases[i].degree);
    d.dropout = 0.3;
    state = 99;
    t[i] = new_trial(d, NULL, 0);
    t[i]->seed = cases[i].seed;
    run(t[i]);
  }
  double same = 0, other = 0;
  for (int i = 0; i < B * T * H * DV; ++i) {
    same = fmax(same, fabs((double)(t[0]->out[i] - t[1]->out[i])));
    other = fmax(other, fabs((double)(t[1]->out[i] - t[2]->out[i])));
  }
  CHECK(same < 1e-6 && other > 0.1);
  for (int i = 0; i < 3; ++i) free(t[i]);
}

int main(void) {
  test_numbers();
  test_dropout();
  return 0;
}
