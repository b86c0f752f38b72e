/* SPDX-License-Identifier: Apache-2.0 */
/* What the makers of communicators and the functions on them refuse, with status and text, in one process. */
#define _POSIX_C_SOURCE 200809L
#include "c_api_checks.h"

#include <math.h>
#include <sched.h>

static void no_listener(void* context, int32_t port) {
  (void)port;
  *(int*)context = 1;
}

static usp_socket_job job_of(int32_t rank, int32_t ranks) {
  usp_socket_job job;
  OK(usp_socket_job_init(&job, sizeof job));
  job.host = "127.0.0.1", job.rank = rank, job.ranks = ranks;
  return job;
}

static void test_options(void) {
  usp_comm_options options;
  usp_socket_job job = job_of(0, 1);
  usp_comm* comm = NULL;
  REFUSED(usp_comm_options_init(NULL, sizeof options), USP_USAGE, "options is null");
  REFUSED(usp_comm_options_init(&options, sizeof options + 8), USP_USAGE, "load the library");
  REFUSED(usp_comm_options_init(&options, 8), USP_USAGE, "options.size");
#define FIELD(assignment, word)                                               \
  do {                                                                        \
    OK(usp_comm_options_init(&options, sizeof options));                      \
    CHECK(options.watchdog_s == 60 && options.start_s == 0);                  \
    options.assignment;                                                       \
    REFUSED(usp_comm_create_sockets(&job, &options, &comm), USP_USAGE, word); \
    REFUSED(usp_comm_create_launched(&options, &comm), USP_USAGE, word);      \
    CHECK(comm == NULL);                                                      \
  } while (0)
  FIELD(size = 0, "options.size is 0");
  FIELD(size = sizeof options + 8, "load the library");
  FIELD(watchdog_s = 0, "options.watchdog_s is 0");
  FIELD(watchdog_s = (double)NAN, "options.watchdog_s");
  FIELD(watchdog_s = (double)INFINITY, "options.watchdog_s");
  FIELD(start_s = -1, "options.start_s is -1");
  FIELD(reserved = 1, "options.reserved");
#undef FIELD
}

static void test_jobs(void) {
  usp_socket_job job;
  usp_comm* comm = NULL;
  int called = 0;
  REFUSED(usp_socket_job_init(NULL, sizeof job), USP_USAGE, "job is null");
  REFUSED(usp_socket_job_init(&job, 8), USP_USAGE, "job.size");
  REFUSED(usp_comm_create_sockets(NULL, NULL, &comm), USP_USAGE, "job is null");
#define FIELD(assignment, word)                                           \
  do {                                                                    \
    job = job_of(1, 2);                                                   \
    job.port = 1;                                                         \
    job.assignment;                                                       \
    REFUSED(usp_comm_create_sockets(&job, NULL, &comm), USP_USAGE, word); \
    CHECK(comm == NULL);                                                  \
  } while (0)
  FIELD(size = 1, "job.size is 1");
  FIELD(ranks = 0, "job.ranks is 0");
  FIELD(rank = 2, "job.rank is 2; it must be 0 to 1");
  FIELD(rank = -1, "job.rank is -1");
  FIELD(host = NULL, "job.host is null");
  FIELD(port = -1, "job.port is -1");
  FIELD(port = 65536, "job.port is 65536");
  FIELD(port = 0, "rank 1 has port 0");
  FIELD(port = job.rank = 0, "no callback");
#undef FIELD
  job = job_of(0, 2);
  job.host = "198.51.100.7", job.port = 1;
  REFUSED(usp_comm_create_sockets(&job, NULL, &comm), USP_ENVIRONMENT, "without a secret");
  job = job_of(0, 1);
  REFUSED(usp_comm_create_sockets(&job, NULL, NULL), USP_USAGE, "comm is null");
  job.on_listening = no_listener, job.context = &called;
  OK(usp_comm_create_sockets(&job, NULL, &comm));
  CHECK(usp_comm_rank(comm) == 0 && usp_comm_size(comm) == 1 && called == 0);
  OK(usp_comm_barrier(comm));
  usp_comm_destroy(comm);
}

static void test_functions(void) {
  usp_comm *comm = NULL, *group = NULL;
  int32_t one = 0, all = 1;
  OK(usp_comm_create_serial(&comm));
  REFUSED(usp_comm_group(NULL, &one, 1, &group), USP_USAGE, "comm is null");
  REFUSED(usp_comm_group(comm, NULL, 1, &group), USP_USAGE, "ranks is null");
  REFUSED(usp_comm_group(comm, &one, 0, &group), USP_USAGE, "count is 0");
  REFUSED(usp_comm_group(comm, &one, INT32_MAX, &group), USP_USAGE, "count is 2147483647");
  REFUSED(usp_comm_group(comm, &one, 1, NULL), USP_USAGE, "group is null");
  OK(usp_comm_group(comm, &one, 1, &group));
  CHECK(usp_comm_size(group) == 1);
  usp_comm_destroy(group);
  REFUSED(usp_comm_all_gather(NULL, &one, &all, 4), USP_USAGE, "comm is null");
  REFUSED(usp_comm_all_gather(comm, NULL, &all, 4), USP_USAGE, "mine is null");
  REFUSED(usp_comm_all_gather(comm, &one, NULL, 4), USP_USAGE, "all is null");
  REFUSED(usp_comm_all_gather(comm, &one, &all, -1), USP_USAGE, "bytes is -1");
  OK(usp_comm_all_gather(comm, &one, &all, sizeof one));
  CHECK(all == 0);
  REFUSED(usp_comm_broadcast(NULL, &one, 4, 0), USP_USAGE, "comm is null");
  REFUSED(usp_comm_broadcast(comm, NULL, 4, 0), USP_USAGE, "data is null");
  REFUSED(usp_comm_broadcast(comm, &one, -1, 0), USP_USAGE, "bytes is -1");
  REFUSED(usp_comm_broadcast(comm, &one, 4, 1), USP_USAGE, "root is 1");
  OK(usp_comm_broadcast(comm, &one, sizeof one, 0));
  REFUSED(usp_comm_abort(NULL, "reason"), USP_USAGE, "comm is null");
  OK(usp_comm_abort(comm, "reason"));
  REFUSED(usp_comm_barrier(comm), USP_ENVIRONMENT, "rank 0 ended the job: reason");
  usp_comm_destroy(comm);
}

static void test_fault(void) {
  usp_fault fault;
  fault.size = sizeof fault;
  OK(usp_last_fault(&fault)); /* of the abort above */
  CHECK(fault.kind == USP_FAULT_COMMUNICATION && fault.rank_count == 1 && fault.ranks[0] == 0);
  CHECK(usp_comm_barrier(NULL) == USP_USAGE);
  CHECK(usp_last_fault(&fault) == USP_USAGE);
  CHECK(strcmp(usp_last_error(), "comm is null; it must be given") == 0);
  REFUSED(usp_last_fault(NULL), USP_USAGE, "fault is null");
  fault.size = 4;
  REFUSED(usp_last_fault(&fault), USP_USAGE, "fault.size is 4");
  fault.size = sizeof fault + 8;
  REFUSED(usp_last_fault(&fault), USP_USAGE, "load the library");
}

/* The fault that ended a job of threads reaches the caller with its parts. */
static int rank_disagrees(usp_comm* comm, void* user) {
  (void)user;
  usp_comm* group = NULL;
  const int32_t list[] = {0, usp_comm_rank(comm) == 2 ? 2 : 1};
  return usp_comm_group(comm, list, 2, &group);
}

/* Rank 2 may end the job while the others still make their engine. */
static int rank_aborts_in_group(usp_comm* comm, void* user) {
  (void)user;
  usp_engine_desc desc;
  usp_engine* engine = NULL;
  usp_comm* ring = NULL;
  OK(usp_engine_desc_init(&desc, sizeof desc));
  desc.ring = 1, desc.ulysses = 3;
  int status = usp_engine_create(&desc, comm, &engine);
  if (status == USP_OK && usp_comm_rank(comm) == 2) {
    OK(usp_engine_ring_comm(engine, &ring));
    OK(usp_comm_abort(ring, "out of data"));
  }
  if (status == USP_OK) status = usp_comm_barrier(comm);
  usp_engine_destroy(engine);
  return status;
}

/* Rank 1 stays away from a barrier until rank 0 has given up. */
static int rank_comes_late(usp_comm* comm, void* user) {
  volatile int* gave_up = user;
  if (usp_comm_rank(comm) == 1) {
    while (*gave_up == 0) sched_yield();
    return USP_OK;
  }
  const int status = usp_comm_barrier(comm);
  *gave_up = 1;
  return status;
}

static int32_t at_once(void* context) {
  *(int*)context = 1;
  return 1;
}

static void test_thread_options(void) {
  usp_comm_options options;
  usp_fault fault;
  int gave_up = 0, asked = 0;
  fault.size = sizeof fault;
  OK(usp_comm_options_init(&options, sizeof options));
  options.watchdog_s = 0.05;
  REFUSED(usp_run_threads_with(2, &options, rank_comes_late, &gave_up), USP_ENVIRONMENT, "0.05 s");
  OK(usp_last_fault(&fault));
  CHECK(fault.rank_count == 1 && fault.ranks[0] == 1);
  options.watchdog_s = 60, options.interrupted = at_once, options.context = &asked, gave_up = 0;
  REFUSED(usp_run_threads_with(2, &options, rank_comes_late, &gave_up), USP_ENVIRONMENT, "interrupted");
  CHECK(asked == 1);
  options.watchdog_s = 0;
  REFUSED(usp_run_threads_with(2, &options, rank_comes_late, &gave_up), USP_USAGE, "watchdog_s");
  REFUSED(usp_run_threads_with(0, NULL, rank_comes_late, &gave_up), USP_USAGE, "ranks is 0");
}

static void keep_port(void* context, int32_t port) {
  *(int32_t*)context = port;
}

/* Ranks that wait for others to start: rank 0 for any, rank 1 for a rank 0 that hears and never answers. */
static void test_interrupted_meeting(void) {
  usp_socket_job job;
  usp_comm_options options;
  usp_comm* comm = NULL;
  int asked = 0;
  int32_t port = 0;
  OK(usp_socket_job_init(&job, sizeof job));
  OK(usp_comm_options_init(&options, sizeof options));
  options.interrupted = at_once, options.context = &asked;
  job.host = "127.0.0.1", job.rank = 0, job.ranks = 2, job.on_listening = keep_port, job.context = &port;
  REFUSED(usp_comm_create_sockets(&job, &options, &comm), USP_ENVIRONMENT,
          "rank 0 was interrupted while it waited in 'start'; the job");
  CHECK(asked == 1 && port > 0);
  job.rank = 1, job.port = port, asked = 0; /* nothing listens there any more */
  REFUSED(usp_comm_create_sockets(&job, &options, &comm), USP_ENVIRONMENT, "rank 1 was interrupted");
  CHECK(asked == 1);
}

static void test_threads(void) {
  usp_fault fault;
  fault.size = sizeof fault;
  CHECK(usp_run_threads(3, rank_disagrees, NULL) == USP_ENVIRONMENT);
  OK(usp_last_fault(&fault));
  CHECK(fault.kind == USP_FAULT_DISAGREEMENT && strcmp(fault.field, "group") == 0);
  CHECK(fault.rank_count == 1 && fault.ranks[0] == 2);
  REFUSED(usp_run_threads(3, rank_aborts_in_group, NULL), USP_ENVIRONMENT,
          "rank 2 ended the job: out of data");
  OK(usp_last_fault(&fault));
  CHECK(fault.kind == USP_FAULT_COMMUNICATION && fault.rank == 2 && fault.ranks[0] == 2);
}

static void test_launchers(void) {
  static const char* const variables[] = {"OMPI_COMM_WORLD_SIZE",
                                          "SLURM_STEP_NUM_TASKS",
                                          "PMI_SIZE",
                                          "PMIX_RANK",
                                          "TORCHELASTIC_RUN_ID",
                                          "RANK",
                                          "WORLD_SIZE",
                                          "MASTER_ADDR",
                                          "MASTER_PORT"};
  usp_comm* comm = NULL;
  for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) CHECK(unsetenv(variables[i]) == 0);
  OK(usp_comm_create_launched(NULL, &comm));
  CHECK(usp_comm_rank(comm) == 0 && usp_comm_size(comm) == 1);
  usp_comm_destroy(comm);
  comm = NULL;
  REFUSED(usp_comm_create_launched(NULL, NULL), USP_USAGE, "comm is null");
  setenv("RANK", "0", 1), setenv("WORLD_SIZE", "2", 1);
  REFUSED(usp_comm_create_launched(NULL, &comm), USP_USAGE, "MASTER_ADDR");
#if !USP_TEST_MPI
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  REFUSED(usp_comm_create_launched(NULL, &comm), USP_ENVIRONMENT, "this build has no MPI");
#endif
  CHECK(comm == NULL);
}

int main(void) {
  test_options();
  test_jobs();
  test_functions();
  test_fault();
  test_threads();
  test_thread_options();
  test_interrupted_meeting();
  test_launchers();
  return 0;
}
