/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the C API that join processes over TCP: attention as on one rank, groups and collectives,
 * and the faults between ranks by their parts. */
#define _POSIX_C_SOURCE 200809L
#include "c_processes.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* [batch][token][head][width] of all tokens: the same values in every process. */
typedef struct tensors {
  double q[B * T * H * D], k[B * T * HK * D], v[B * T * HK * DV], d_out[B * T * H * DV];
  double out[B * T * H * DV], dq[B * T * H * D], dk[B * T * HK * D], dv[B * T * HK * DV];
} tensors;

static void fill(double* x, int count) {
  static uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (double)(state >> 8) / 8388608.0 - 1.0;
  }
}

static usp_fault last_fault(int32_t kind) {
  usp_fault fault;
  fault.size = sizeof fault;
  OK(usp_last_fault(&fault));
  CHECK(fault.kind == kind);
  return fault;
}

static int names(const usp_fault* fault, int32_t rank) {
  for (int32_t i = 0; i < fault->rank_count; ++i)
    if (fault->ranks[i] == rank) return 1;
  return 0;
}

/* A rank's rows of a global tensor, as memory of its own. */
static usp_tensor gathered(const double* all, const int64_t* tokens, int64_t rows, int64_t heads,
                           int64_t width) {
  const int64_t run = heads * width;
  double* data = calloc((size_t)(B * rows * run) + 1, sizeof *data);
  CHECK(data != NULL);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < rows; ++i)
      memcpy(data + (b * rows + i) * run, all + (b * T + tokens[i]) * run, (size_t)run * sizeof *data);
  return usp_tensor_contiguous(data, USP_FP64, rows, heads, width);
}

/* Frees `mine`, whose rows are these tokens of `all`. */
static void expect_rows(usp_tensor mine, const double* all, const int64_t* tokens, int64_t rows,
                        int64_t run) {
  const double* data = mine.data;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t x = 0; x < run; ++x)
        CHECK(fabs(data[(b * rows + i) * run + x] - all[(b * T + tokens[i]) * run + x]) < 1e-12);
  free(mine.data);
}

/* Forward and backward on one rank: the reference. */
static void attend_alone(tensors* t, const int64_t* cu_seqlens, int64_t documents) {
  usp_attention_desc desc = describe(1, 1);
  usp_plan* plan = NULL;
  usp_comm* comm = NULL;
  usp_attention* attention = NULL;
  usp_attention_inputs in;
  usp_attention_gradients g;
  desc.dtype = USP_FP64;
  OK(usp_plan_create(&desc, &plan));
  OK(usp_comm_create_serial(&comm));
  OK(usp_attention_create(plan, comm, &attention));
  OK(usp_attention_set_batch(attention, cu_seqlens, documents));
  OK(usp_attention_inputs_init(&in, sizeof in));
  OK(usp_attention_gradients_init(&g, sizeof g));
  in.q = usp_tensor_contiguous(t->q, USP_FP64, T, H, D);
  in.k = usp_tensor_contiguous(t->k, USP_FP64, T, HK, D);
  in.v = usp_tensor_contiguous(t->v, USP_FP64, T, HK, DV);
  g.dq = usp_tensor_contiguous(t->dq, USP_FP64, T, H, D);
  g.dk = usp_tensor_contiguous(t->dk, USP_FP64, T, HK, D);
  g.dv = usp_tensor_contiguous(t->dv, USP_FP64, T, HK, DV);
  const usp_tensor out = usp_tensor_contiguous(t->out, USP_FP64, T, H, DV);
  const usp_tensor d_out = usp_tensor_contiguous(t->d_out, USP_FP64, T, H, DV);
  OK(usp_attention_forward(attention, &in, &out, NULL));
  OK(usp_attention_backward(attention, &in, &d_out, &g));
  usp_attention_destroy(attention);
  usp_comm_destroy(comm);
  usp_plan_destroy(plan);
}

static void attend(usp_comm* comm, tensors* t, const int64_t* cu_seqlens, int64_t documents) {
  usp_attention_desc desc = describe(usp_comm_size(comm), 1);
  usp_plan* plan = NULL;
  usp_attention* attention = NULL;
  usp_attention_inputs in;
  usp_attention_gradients g;
  const int64_t *q, *kv;
  int64_t q_rows, kv_rows;
  desc.dtype = USP_FP64;
  OK(usp_plan_create(&desc, &plan));
  OK(usp_attention_create(plan, comm, &attention));
  OK(usp_attention_set_batch(attention, cu_seqlens, documents));
  OK(usp_attention_q_tokens(attention, &q, &q_rows));
  OK(usp_attention_kv_tokens(attention, &kv, &kv_rows));
  CHECK(q_rows > 0 && q_rows < T);
  OK(usp_attention_inputs_init(&in, sizeof in));
  OK(usp_attention_gradients_init(&g, sizeof g));
  in.q = gathered(t->q, q, q_rows, H, D);
  in.k = gathered(t->k, kv, kv_rows, HK, D), in.v = gathered(t->v, kv, kv_rows, HK, DV);
  const usp_tensor d_out = gathered(t->d_out, q, q_rows, H, DV);
  const usp_tensor out = gathered(t->d_out, q, q_rows, H, DV);
  g.dq = gathered(t->q, q, q_rows, H, D);
  g.dk = gathered(t->k, kv, kv_rows, HK, D), g.dv = gathered(t->v, kv, kv_rows, HK, DV);
  OK(usp_attention_forward(attention, &in, &out, NULL));
  OK(usp_attention_backward(attention, &in, &d_out, &g));
  expect_rows(out, t->out, q, q_rows, H * DV);
  expect_rows(g.dq, t->dq, q, q_rows, H * D);
  expect_rows(g.dk, t->dk, kv, kv_rows, HK * D);
  expect_rows(g.dv, t->dv, kv, kv_rows, HK * DV);
  free(in.q.data), free(in.k.data), free(in.v.data), free(d_out.data);
  usp_attention_destroy(attention);
  usp_plan_destroy(plan);
}

static void attention_as_on_one_rank(rank_job* job) {
  static tensors t;
  const int64_t cu_seqlens[] = {0, 9, T};
  fill(t.q, B * T * H * D), fill(t.k, B * T * HK * D), fill(t.v, B * T * HK * DV),
      fill(t.d_out, B * T * H * DV);
  attend_alone(&t, cu_seqlens, 2);
  usp_comm* comm = meet(job, 60);
  attend(comm, &t, cu_seqlens, 2);
  usp_comm_destroy(comm);
}

static void groups_and_collectives(rank_job* job) {
  usp_comm* comm = meet(job, 60);
  usp_comm *pair = comm, *alone = comm;
  const int16_t mine = (int16_t)(10 + job->rank);
  int16_t all[RANKS] = {0}, from = mine;
  OK(usp_comm_all_gather(comm, &mine, all, sizeof mine));
  CHECK(all[0] == 10 && all[1] == 11 && all[2] == 12);
  OK(usp_comm_all_gather(comm, NULL, NULL, 0));
  OK(usp_comm_broadcast(comm, &from, sizeof from, 2));
  CHECK(from == 12);
  OK(usp_comm_group(comm, (const int32_t[]){2, 0}, 2, &pair));
  OK(usp_comm_group(comm, (const int32_t[]){1}, 1, &alone));
  CHECK((pair == NULL) == (job->rank == 1) && (alone == NULL) == (job->rank != 1));
  if (pair != NULL) {
    CHECK(usp_comm_size(pair) == 2 && usp_comm_rank(pair) == (job->rank == 2 ? 0 : 1));
    OK(usp_comm_all_gather(pair, &mine, all, sizeof mine));
    CHECK(all[0] == 12 && all[1] == 10);
  } else {
    CHECK(usp_comm_size(alone) == 1);
    OK(usp_comm_barrier(alone));
  }
  usp_comm* none = NULL;
  REFUSED(usp_comm_group(comm, (const int32_t[]){0, 0}, 2, &none), USP_USAGE, "repeated");
  REFUSED(usp_comm_group(comm, (const int32_t[]){0, 3}, 2, &none), USP_USAGE, "outside");
  const int32_t list[] = {0, job->rank == 1 ? 1 : 2};
  CHECK(usp_comm_group(comm, list, 2, &none) == USP_ENVIRONMENT && none == NULL);
  const usp_fault fault = last_fault(USP_FAULT_DISAGREEMENT);
  CHECK(strcmp(fault.field, "group") == 0 && fault.rank_count == 1 && fault.ranks[0] == 1);
  OK(usp_comm_barrier(comm));
  usp_comm_destroy(pair), usp_comm_destroy(alone);
  usp_comm_destroy(comm);
}

static int32_t interrupt_third(void* context) {
  int* asked = context;
  return ++*asked == 3;
}

/* Rank 0 waits for a rank that waits for the end of the job. */
static void interrupted(rank_job* job) {
  const usp_socket_job own = socket_job(job);
  usp_comm_options options = comm_options(60);
  usp_comm* comm = NULL;
  int asked = -1000000; /* the meeting asks too */
  if (job->rank == 0) options.interrupted = interrupt_third, options.context = &asked;
  OK(usp_comm_create_sockets(&own, &options, &comm));
  asked = 0;
  char byte = 0;
  if (job->rank == 0) {
    REFUSED(usp_comm_broadcast(comm, &byte, 1, 1), USP_ENVIRONMENT, "rank 0 was interrupted while it waited");
    CHECK(asked == 3);
  } else {
    REFUSED(usp_comm_broadcast(comm, &byte, 1, 3 - job->rank), USP_ENVIRONMENT, "rank 0 was interrupted");
  }
  usp_comm_destroy(comm);
}

static void other_documents(rank_job* job) {
  usp_comm* comm = meet(job, 60);
  usp_attention_desc desc = describe(RANKS, 1);
  usp_plan* plan = NULL;
  usp_attention* attention = NULL;
  const int64_t cu_seqlens[] = {0, job->rank == 1 ? 8 : 9, T};
  OK(usp_plan_create(&desc, &plan));
  OK(usp_attention_create(plan, comm, &attention));
  REFUSED(usp_attention_set_batch(attention, cu_seqlens, 2), USP_ENVIRONMENT, "rank 1 holds another 'batch'");
  const usp_fault fault = last_fault(USP_FAULT_DISAGREEMENT);
  CHECK(strcmp(fault.field, "batch") == 0 && strcmp(fault.operation, "") == 0);
  CHECK(fault.rank_count == 1 && fault.ranks[0] == 1 && fault.rank == -1 && fault.tick == -1);
  OK(usp_attention_set_batch(attention, NULL, 0));
  usp_attention_destroy(attention);
  usp_plan_destroy(plan);
  usp_comm_destroy(comm);
}

/* Returns on rank `last` after the others have returned, which then wait for nothing. */
static void arrive_before(usp_comm* comm, int32_t last) {
  usp_comm* groups[RANKS] = {NULL};
  for (int32_t peer = 0; peer < RANKS; ++peer)
    if (peer != last) OK(usp_comm_group(comm, (const int32_t[]){peer, last}, 2, &groups[peer]));
  for (int32_t peer = 0; peer < RANKS; ++peer) {
    char byte = 0;
    if (groups[peer] != NULL) OK(usp_comm_broadcast(groups[peer], &byte, 1, 0));
    usp_comm_destroy(groups[peer]);
  }
}

static void killed_rank(rank_job* job) {
  usp_comm* comm = meet(job, 20);
  arrive_before(comm, 2);
  if (job->rank == 2) CHECK(kill(getpid(), SIGKILL) == 0);
  REFUSED(usp_comm_barrier(comm), USP_ENVIRONMENT, "rank 2");
  const usp_fault fault = last_fault(USP_FAULT_COMMUNICATION);
  CHECK(fault.rank_count == 1 && fault.ranks[0] == 2 && strcmp(fault.field, "") == 0);
  CHECK(fault.operation[0] != 0 && fault.tick == -1 && (fault.rank == 0 || fault.rank == 1));
  CHECK(usp_comm_barrier(comm) == USP_ENVIRONMENT);
  usp_comm_destroy(comm);
}

/* Rank 2 is gone while the others destroy, without a call that would report it. */
static void killed_before_the_end(rank_job* job) {
  usp_comm* comm = meet(job, 20);
  arrive_before(comm, 2);
  if (job->rank == 2) CHECK(kill(getpid(), SIGKILL) == 0);
  usp_comm_destroy(comm);
}

/* The others are still in destroy when rank 1 gets there, long after what a closed connection is given. */
static void slow_rank(rank_job* job) {
  usp_comm* comm = meet(job, 60);
  if (job->rank == 1) {
    sleep(5);
    CHECK(write(job->life_pipe[1], "1", 1) == 1);
  }
  usp_comm_destroy(comm);
  struct pollfd arrived = {job->life_pipe[0], POLLIN, 0};
  CHECK(poll(&arrived, 1, 0) == 1);
}

static void silent_rank(rank_job* job) {
  usp_comm* comm = meet(job, 2);
  if (job->rank == 2) {
    wait_for_end(job);
  } else {
    REFUSED(usp_comm_barrier(comm), USP_ENVIRONMENT, "which did not arrive");
    const usp_fault fault = last_fault(USP_FAULT_COMMUNICATION);
    CHECK(names(&fault, 2) && strcmp(fault.operation, "barrier") == 0);
  }
  close(job->life_pipe[1]);
  usp_comm_destroy(comm);
}

static void aborted_job(rank_job* job) {
  usp_comm* comm = meet(job, 60);
  usp_comm *pair = NULL, *alone = NULL;
  OK(usp_comm_group(comm, (const int32_t[]){1, 2}, 2, &pair));
  OK(usp_comm_group(comm, (const int32_t[]){1}, 1, &alone));
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = RANKS, desc.ulysses = 1;
  OK(usp_engine_create(&desc, comm, &engine));
  OK(usp_engine_check(engine));
  arrive_before(comm, 1);
  if (job->rank == 1) {
    REFUSED(usp_comm_abort(comm, NULL), USP_USAGE, "reason is null");
    OK(usp_comm_abort(alone, "the data set ended"));
    CHECK(usp_comm_barrier(alone) == USP_ENVIRONMENT);
  }
  REFUSED(usp_comm_barrier(comm), USP_ENVIRONMENT, "rank 1 ended the job: the data set ended");
  const usp_fault fault = last_fault(USP_FAULT_COMMUNICATION);
  CHECK(strcmp(fault.operation, "abort") == 0 && fault.rank == 1 && fault.rank_count == 1);
  CHECK(fault.ranks[0] == 1);
  REFUSED(usp_engine_check(engine), USP_ENVIRONMENT, "the data set ended");
  usp_engine_destroy(engine);
  usp_comm_destroy(pair), usp_comm_destroy(alone);
  usp_comm_destroy(comm);
}

/* Rank 1 has another secret: it is refused, and the others lack it. */
static void wrong_secret(rank_job* job) {
  usp_socket_job own = socket_job(job);
  usp_comm_options options = comm_options(60);
  usp_comm* comm = NULL;
  own.secret = job->rank == 1 ? "another secret of this job" : "the secret of this job";
  options.start_s = 5;
  CHECK(usp_comm_create_sockets(&own, &options, &comm) == USP_ENVIRONMENT && comm == NULL);
  if (job->rank == 1) CHECK(strstr(usp_last_error(), "did not prove") != NULL);
  if (job->rank != 0) return;
  const usp_fault fault = last_fault(USP_FAULT_COMMUNICATION);
  CHECK(strcmp(fault.operation, "start") == 0 && names(&fault, 1) && fault.rank == 0);
  CHECK(strstr(usp_last_error(), "rank 1 did not prove") != NULL);
}

static void same_secret(rank_job* job) {
  usp_socket_job own = socket_job(job);
  usp_comm* comm = NULL;
  own.secret = "the secret of this job", own.host = NULL, own.one_host = 1;
  OK(usp_comm_create_sockets(&own, NULL, &comm));
  double sum = 1;
  OK(usp_comm_all_reduce_f64(comm, &sum, 1));
  CHECK(sum == RANKS);
  usp_comm_destroy(comm);
}

static void set_number(const char* name, int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  CHECK(setenv(name, text, 1) == 0);
}

static void launched_by_torchrun(rank_job* job) {
  set_number("RANK", job->rank), set_number("WORLD_SIZE", RANKS), set_number("LOCAL_WORLD_SIZE", RANKS);
  set_number("MASTER_PORT", job->port), set_number("USP_MASTER_PORT", job->port);
  setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("TORCHELASTIC_RUN_ID", "none", 1);
  usp_comm* comm = NULL;
  OK(usp_comm_create_launched(NULL, &comm));
  CHECK(usp_comm_rank(comm) == job->rank && usp_comm_size(comm) == RANKS);
  OK(usp_comm_barrier(comm));
  usp_comm_destroy(comm);
}

static int32_t free_port(void) {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  socklen_t length = sizeof address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(bind(probe, (struct sockaddr*)&address, length) == 0);
  CHECK(getsockname(probe, (struct sockaddr*)&address, &length) == 0);
  close(probe);
  return ntohs(address.sin_port);
}

int main(void) {
  run_processes(attention_as_on_one_rank, 0, -1);
  run_processes(groups_and_collectives, 0, -1);
  run_processes(interrupted, 0, -1);
  run_processes(other_documents, 0, -1);
  run_processes(killed_rank, 0, 2);
  run_processes(killed_before_the_end, 0, 2);
  run_processes(slow_rank, 0, -1);
  run_processes(silent_rank, 0, -1);
  run_processes(aborted_job, 0, -1);
  run_processes(wrong_secret, 0, -1);
  run_processes(same_secret, 0, -1);
  run_processes(launched_by_torchrun, free_port(), -1);
  return 0;
}
