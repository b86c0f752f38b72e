/* SPDX-License-Identifier: Apache-2.0 */
/* Two layers and two microbatches of packed documents on a ring 2 x ulysses 2 mesh of threads: both forwards
 * run before either backward, as a pipeline does. All values are 1, so every output is 1 (a mean of ones),
 * and the value gradients of all ranks sum up to those of the outputs. The program checks both and prints
 * them. */
#include "usp/usp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { tokens = 512, query_heads = 8, kv_heads = 2, width = 64, layers = 2, microbatches = 2 };

#define TRY(call)                          \
  do {                                     \
    const usp_status status_ = (call);     \
    if (status_ != USP_OK) return status_; \
  } while (0)

typedef struct layer_call {
  usp_tensor q, k, v, out, d_out, dq, dk, dv;
  usp_call call;
  void* saved_block; /* call.saved lies in it, on a boundary of 256 bytes */
} layer_call;

static usp_tensor filled(int64_t rows, int64_t heads, float value) {
  const int64_t count = rows * heads * width;
  float* data = malloc((size_t)count * sizeof(float));
  for (int64_t i = 0; i < count; ++i) data[i] = value;
  return usp_tensor_contiguous(data, USP_FP32, rows, heads, width);
}

static layer_call make_layer_call(const usp_batch_sizes* sizes, int64_t layer) {
  layer_call c;
  c.q = filled(sizes->q_rows, query_heads, 0.5f), c.k = filled(sizes->kv_rows, kv_heads, 0.25f);
  c.v = filled(sizes->kv_rows, kv_heads, 1), c.d_out = filled(sizes->q_rows, query_heads, 1);
  c.out = filled(sizes->q_rows, query_heads, 0), c.dq = filled(sizes->q_rows, query_heads, 0);
  c.dk = filled(sizes->kv_rows, kv_heads, 0), c.dv = filled(sizes->kv_rows, kv_heads, 0);
  usp_call_init(&c.call, sizeof c.call);
  c.saved_block = malloc((size_t)sizes->saved_bytes + 256);
  c.call.saved = (char*)c.saved_block + (256 - (uintptr_t)c.saved_block % 256);
  c.call.saved_bytes = sizes->saved_bytes;
  c.call.layer = layer;
  return c;
}

static void free_layer_call(layer_call* c) {
  usp_tensor* tensors[] = {&c->q, &c->k, &c->v, &c->out, &c->d_out, &c->dq, &c->dk, &c->dv};
  for (int i = 0; i < 8; ++i) free(tensors[i]->data);
  free(c->saved_block);
}

static double sum(const usp_tensor* t, int64_t rows, int64_t heads) {
  double total = 0;
  for (int64_t i = 0; i < rows * heads * width; ++i) total += (double)((const float*)t->data)[i];
  return total;
}

static usp_status forward(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, layer_call* c) {
  usp_attention_inputs in;
  usp_attention_inputs_init(&in, sizeof in);
  in.q = c->q, in.k = c->k, in.v = c->v;
  return usp_attend(engine, plan, batch, &in, &c->out, NULL, &c->call);
}

static usp_status backward(usp_engine* engine, const usp_plan* plan, const usp_batch* batch, layer_call* c) {
  usp_attention_inputs in;
  usp_attention_gradients gradients;
  usp_attention_inputs_init(&in, sizeof in);
  usp_attention_gradients_init(&gradients, sizeof gradients);
  in.q = c->q, in.k = c->k, in.v = c->v;
  gradients.dq = c->dq, gradients.dk = c->dk, gradients.dv = c->dv;
  return usp_attend_grad(engine, plan, batch, &in, &c->out, &c->d_out, &gradients, &c->call);
}

static int train(usp_comm* comm, void* user) { /* one rank */
  const usp_plan* plan = user;
  const int64_t cu_seqlens[microbatches][4] = {{0, 100, 350, tokens}, {0, 256, 300, tokens}};
  usp_batch* batches[microbatches];
  usp_batch_sizes sizes[microbatches];
  layer_call calls[microbatches][layers];
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  TRY(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = 2, desc.ulysses = 2;
  TRY(usp_engine_create(&desc, comm, &engine));
  for (int m = 0; m < microbatches; ++m) {
    TRY(usp_batch_create(engine, cu_seqlens[m], 3, 0, &batches[m]));
    sizes[m].size = sizeof sizes[m];
    TRY(usp_batch_get_sizes(batches[m], plan, &sizes[m]));
    for (int l = 0; l < layers; ++l) calls[m][l] = make_layer_call(&sizes[m], l);
    for (int l = 0; l < layers; ++l) TRY(forward(engine, plan, batches[m], &calls[m][l]));
  }
  for (int m = 0; m < microbatches; ++m)
    for (int l = layers; l-- > 0;) TRY(backward(engine, plan, batches[m], &calls[m][l]));

  int wrong = 0;
  for (int m = 0; m < microbatches; ++m) {
    double sums[3] = {0, 0, 0}; /* out, d_out, dv of all layers and ranks */
    for (int l = 0; l < layers; ++l) {
      sums[0] += sum(&calls[m][l].out, sizes[m].q_rows, query_heads);
      sums[1] += sum(&calls[m][l].d_out, sizes[m].q_rows, query_heads);
      sums[2] += sum(&calls[m][l].dv, sizes[m].kv_rows, kv_heads);
      free_layer_call(&calls[m][l]);
    }
    TRY(usp_comm_all_reduce_f64(comm, sums, 3));
    const double expected = (double)tokens * query_heads * width * layers;
    for (int i = 0; i < 3; ++i) wrong |= !(fabs(sums[i] / expected - 1) < 1e-5);
    if (usp_comm_rank(comm) == 0)
      printf("microbatch %d: sums of out %.0f, d_out %.0f, dv %.0f (expected %.0f)\n", m, sums[0], sums[1],
             sums[2], expected);
    usp_batch_destroy(batches[m]);
  }
  if (usp_comm_rank(comm) == 0)
    printf("%lld bytes of workspace for %d layers, %lld bytes saved per forward in flight\n",
           (long long)usp_engine_workspace_bytes(engine), layers, (long long)sizes[0].saved_bytes);
  usp_engine_destroy(engine);
  return wrong ? USP_VERIFICATION : USP_OK;
}

int main(void) {
  usp_plan* plan = NULL;
  usp_attention_desc desc;
  usp_attention_desc_init(&desc, sizeof desc);
  desc.ring = 2, desc.ulysses = 2, desc.q_tokens = tokens, desc.dtype = USP_FP32;
  desc.query_heads = query_heads, desc.kv_heads = kv_heads, desc.head_dim_qk = width;
  desc.diff_min = 0; /* causal */
  usp_status status = usp_plan_create(&desc, &plan);
  if (status == USP_OK) status = usp_run_threads(4, train, plan);
  if (status != USP_OK) fprintf(stderr, "%s\n", usp_last_error());
  usp_plan_destroy(plan);
  return (int)status;
}
